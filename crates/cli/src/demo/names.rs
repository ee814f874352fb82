//! Where the names of points go in a plot: beside their point, over no other name and no other
//! point, and inside of it.

/// A rectangle: left, top, right, bottom.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Rect(pub f64, pub f64, pub f64, pub f64);

/// Where a name is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Place {
    /// Left end and base line of the text.
    pub at: (f64, f64),
    /// A line from here to there says whose name it is, if it is not next to its point.
    pub line: Option<[(f64, f64); 2]>,
}

/// Height of a name, of which so much is below its base line.
const HEIGHT: f64 = 13.0;
const BELOW: f64 = 3.5;
/// Radius of a point with some space around it.
const RADIUS: f64 = 8.0;
/// From a point to its name at the nearest, and how much farther it may be each time.
const NEAR: f64 = 10.0;
const STEP: f64 = 13.0;
const STEPS: usize = 12;
/// Directions to try, the better ones first: x, y.
const DIRECTIONS: [(f64, f64); 12] = [
    (1.0, 0.0),
    (-1.0, 0.0),
    (0.7, -0.7),
    (0.7, 0.7),
    (-0.7, -0.7),
    (-0.7, 0.7),
    (0.0, -1.0),
    (0.0, 1.0),
    (0.9, -0.4),
    (-0.9, -0.4),
    (0.4, -0.9),
    (-0.4, -0.9),
];
/// What a pixel of distance counts.
const FARTHER: f64 = 0.5;
/// What a square pixel that is covered counts.
const COVERED: f64 = 8.0;
/// What it counts if the line to a point goes through another or through a name, or a name lies on
/// a line; and at how many places that is looked at.
const CROSSED: f64 = 60.0;
const LOOKS: u32 = 16;
/// What a pixel outside of the plot counts: more than to cover a whole name.
const OUTSIDE: f64 = 2_000.0;

impl Rect {
    fn around((x, y): (f64, f64), radius: f64) -> Rect {
        Rect(x - radius, y - radius, x + radius, y + radius)
    }

    fn shared(self, other: Rect) -> f64 {
        let width = self.2.min(other.2) - self.0.max(other.0);
        let height = self.3.min(other.3) - self.1.max(other.1);
        width.max(0.0) * height.max(0.0)
    }

    fn outside(self, of: Rect) -> f64 {
        let beyond = [of.0 - self.0, of.1 - self.1, self.2 - of.2, self.3 - of.3];
        beyond.iter().map(|by| by.max(0.0)).sum()
    }

    fn is_crossed(self, [from, to]: [(f64, f64); 2]) -> bool {
        (0..=LOOKS).any(|n| {
            let part = f64::from(n) / f64::from(LOOKS);
            let at = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            self.nearest(at) == at
        })
    }

    /// Its point that is nearest to another.
    fn nearest(self, (x, y): (f64, f64)) -> (f64, f64) {
        (x.clamp(self.0, self.2), y.clamp(self.1, self.3))
    }
}

/// Places for the names of `points`, in pixels, as wide as `widths`, within `area`.
pub(super) fn place(points: &[(f64, f64)], widths: &[f64], area: Rect) -> Vec<Place> {
    let mut names: Vec<Rect> = Vec::with_capacity(points.len());
    let mut lines: Vec<[(f64, f64); 2]> = Vec::new();
    let place_one = |(&point, &width): (&(f64, f64), &f64)| {
        let line_to = |found: Rect| {
            let end = found.nearest(point);
            let is_far = (end.0 - point.0).hypot(end.1 - point.1) > NEAR + STEP / 2.0;
            is_far.then_some([point, end])
        };
        let cost = |&(distance, found): &(f64, Rect)| {
            let others = || points.iter().map(|&p| Rect::around(p, RADIUS));
            let covered: f64 = names.iter().copied().chain(others()).map(|r| found.shared(r)).sum();
            let through = line_to(found).map_or(0, |line| {
                let in_the_way = names.iter().copied().chain(others());
                // (Points around it, too, begin there.)
                in_the_way.filter(|r| r.nearest(point) != point && r.is_crossed(line)).count()
            });
            let over = lines.iter().filter(|&&line| found.is_crossed(line)).count();
            covered * COVERED
                + (through + over) as f64 * CROSSED
                + found.outside(area) * OUTSIDE
                + distance * FARTHER
        };
        let (_, found) = candidates(point, width)
            .min_by(|a, b| cost(a).total_cmp(&cost(b)))
            .unwrap_or((0.0, Rect::around(point, 0.0)));
        let line = line_to(found);
        names.push(found);
        lines.extend(line);
        Place { at: (found.0, found.3 - BELOW), line }
    };
    points.iter().zip(widths).map(place_one).collect()
}

/// Where a name of this width may be, each with how far that is from its point.
fn candidates((x, y): (f64, f64), width: f64) -> impl Iterator<Item = (f64, Rect)> {
    let distances = (0..STEPS).map(|n| NEAR + n as f64 * STEP);
    distances.flat_map(move |distance| {
        DIRECTIONS.iter().map(move |&(dx, dy)| {
            let (near_x, near_y) = (x + dx * distance, y + dy * distance);
            let left = match dx {
                dx if dx > 0.0 => near_x,
                dx if dx < 0.0 => near_x - width,
                _ => near_x - width / 2.0,
            };
            let top = match dy {
                dy if dy > 0.0 => near_y - RADIUS / 2.0,
                dy if dy < 0.0 => near_y - HEIGHT + RADIUS / 2.0,
                _ => near_y - HEIGHT / 2.0,
            };
            (distance, Rect(left, top, left + width, top + HEIGHT))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Rect = Rect(50.0, 10.0, 550.0, 400.0);

    fn boxes(points: &[(f64, f64)], width: f64) -> Vec<(Rect, Place)> {
        let places = place(points, &vec![width; points.len()], AREA);
        let of = |p: Place| {
            let bottom = p.at.1 + BELOW;
            (Rect(p.at.0, bottom - HEIGHT, p.at.0 + width, bottom), p)
        };
        places.into_iter().map(of).collect()
    }

    #[test]
    fn a_point_by_itself_has_its_name_at_its_right_or_where_there_is_room() {
        let [(found, place)] = boxes(&[(300.0, 200.0)], 60.0)[..] else { panic!() };
        assert_eq!(found, Rect(310.0, 193.5, 370.0, 206.5));
        assert_eq!(place.line, None);
        let [(found, _)] = boxes(&[(540.0, 200.0)], 60.0)[..] else { panic!() };
        assert_eq!(found.2, 530.0, "at its left");
    }

    #[test]
    fn names_of_a_crowd_in_a_corner_do_not_cover_each_other_or_leave_the_plot() {
        let crowd: Vec<(f64, f64)> =
            (0..7).map(|n| (52.0 + f64::from(n * n), 398.0 - f64::from(n * 2))).collect();
        let placed = boxes(&crowd, 66.0);
        for (n, (found, _)) in placed.iter().enumerate() {
            assert_eq!(found.outside(AREA), 0.0, "{found:?}");
            assert!(placed[..n].iter().all(|(other, _)| other.shared(*found) == 0.0), "{placed:?}");
            let covers = |p: &(f64, f64)| found.shared(Rect::around(*p, RADIUS - 2.0)) > 0.0;
            assert!(!crowd.iter().any(covers), "{found:?}");
        }
        // Those that had to go farther say whose they are.
        let with_line: Vec<[(f64, f64); 2]> = placed.iter().filter_map(|(_, p)| p.line).collect();
        assert!(!with_line.is_empty());
        assert!(with_line.iter().all(|[from, _]| crowd.contains(from)));
    }

    #[test]
    fn nothing_is_placed_nowhere() {
        assert!(place(&[], &[], AREA).is_empty());
    }
}
