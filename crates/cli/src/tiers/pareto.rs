//! Which tiers are worth having: the frontier of cost against fault latency, and a small set whose
//! mixtures lose least.
//!
//! The planner puts some regions here and some there, so two tiers offer every point on the line
//! between them, too, and DRAM (no fault, cost 1) is always one of them. A tier above the lower
//! convex hull of DRAM and the others is therefore never better than a mixture of two tiers on it:
//! what is recommended are corners of that hull. The cheapest is always one of them: it is how far
//! the planner's knob reaches (`TCO_min` of equation 10). When there are more corners than tiers
//! wanted, those stay that keep the area under the hull smallest, over latencies from 0 to that of
//! the cheapest: the mean cost of a page when every mean latency up to there is as likely to be
//! what an application can bear.

/// A tier as the choice sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Median time of a fault, in nanoseconds; positive.
    pub fault_ns: f64,
    /// Cost of holding the data there relative to DRAM; positive, 1 saves nothing.
    pub tco: f64,
}

/// Differences that count as none, as shares of the smaller and dearer value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Of latencies: what repetitions differ by.
    pub latency: f64,
    /// Of costs: what another sample of the data would differ by.
    pub tco: f64,
}

/// Gain in area below which one tier more is not worth its place, as a share of all that the hull
/// gains over DRAM.
pub const GAIN_SHARE_MIN: f64 = 0.005;

/// The places in `points` of the frontier, from the cheapest up, which is from the slowest down.
///
/// From the cheapest up, a tier is on the frontier if it is faster by more than the tolerance than
/// every one that is cheaper; and it takes the place of those that it is not dearer than by more
/// than the tolerance. So for every tier that is not on the frontier there is one on it (or DRAM)
/// that is at most a tolerance worse in one respect and not worse in the other.
pub fn frontier(points: &[Point], tolerance: Tolerance) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (points[a], points[b]);
        a.tco.total_cmp(&b.tco).then(a.fault_ns.total_cmp(&b.fault_ns))
    });
    // With each: the lowest cost of those whose place it took, so that many small steps do not
    // add up to a large one.
    let mut kept: Vec<(usize, f64)> = Vec::new();
    for n in order {
        let Point { fault_ns, tco } = points[n];
        let faster =
            |(m, _): &(usize, f64)| fault_ns < points[*m].fault_ns * (1.0 - tolerance.latency);
        if !kept.last().is_none_or(faster) {
            continue;
        }
        let mut base = tco;
        while let Some(&(_, before)) = kept.last() {
            if tco > before * (1.0 + tolerance.tco) {
                break;
            }
            base = base.min(before);
            kept.pop();
        }
        kept.push((n, base));
    }
    // DRAM is faster than all of them.
    kept.retain(|(_, base)| base * (1.0 + tolerance.tco) < 1.0);
    kept.into_iter().map(|(n, _)| n).collect()
}

/// The corners of the lower convex hull of DRAM and the points at `places`, without DRAM, from the
/// fastest to the cheapest.
pub fn hull(points: &[Point], places: &[usize]) -> Vec<usize> {
    let mut order = places.to_vec();
    order.sort_by(|&a, &b| {
        let (a, b) = (points[a], points[b]);
        a.fault_ns.total_cmp(&b.fault_ns).then(a.tco.total_cmp(&b.tco))
    });
    let mut corners: Vec<usize> = Vec::new();
    for n in order {
        let p = points[n];
        if p.tco >= corners.last().map_or(DRAM, |&c| points[c]).tco {
            continue;
        }
        while let Some(&last) = corners.last() {
            let before = corners.len().checked_sub(2).map_or(DRAM, |i| points[corners[i]]);
            if slope(before, points[last]) < slope(before, p) {
                break;
            }
            corners.pop();
        }
        corners.push(n);
    }
    corners
}

const DRAM: Point = Point { fault_ns: 0.0, tco: 1.0 };

/// Cost for latency, from `a` to the slower `b`; negative where time buys money.
fn slope(a: Point, b: Point) -> f64 {
    (b.tco - a.tco) / (b.fault_ns - a.fault_ns).max(f64::MIN_POSITIVE)
}

/// At most `tiers_max` corners of the hull of the points at `places`, from the fastest to the
/// cheapest: the cheapest, and with it those whose mixtures with DRAM and each other leave the
/// smallest area under them; no more of them than gain [`GAIN_SHARE_MIN`] together on fewer.
pub fn recommend(points: &[Point], places: &[usize], tiers_max: usize) -> Vec<usize> {
    let corners = hull(points, places);
    let chain: Vec<Point> =
        std::iter::once(DRAM).chain(corners.iter().map(|&c| points[c])).collect();
    let Some((_, smallest)) = best(&chain, corners.len()) else { return Vec::new() };
    let gained = |area: f64| chain.last().map_or(0.0, |p| p.fault_ns) - area;
    let mut chosen = Vec::new();
    for tiers in 1..=tiers_max.min(corners.len()) {
        let Some((places, area)) = best(&chain, tiers) else { break };
        chosen = places;
        if gained(smallest) - gained(area) < GAIN_SHARE_MIN * gained(smallest) {
            break;
        }
    }
    chosen.into_iter().map(|place| corners[place - 1]).collect()
}

/// The `tiers` points of a convex chain that begins with DRAM, its last among them, which leave the
/// smallest area under the line through DRAM and them; and that area. `None` if there are not so
/// many, or none is asked for.
///
/// By dynamic programming over (points taken, last point): exact, and the chain has as many points
/// as the hull has corners.
fn best(chain: &[Point], tiers: usize) -> Option<(Vec<usize>, f64)> {
    if tiers == 0 || tiers >= chain.len() {
        return None;
    }
    let between = |a: usize, b: usize| {
        (chain[b].fault_ns - chain[a].fault_ns) * (chain[a].tco + chain[b].tco) / 2.0
    };
    // areas[n]: (area up to point n, points taken up to it, n included).
    let mut areas: Vec<Option<(f64, Vec<usize>)>> = vec![None; chain.len()];
    areas[0] = Some((0.0, Vec::new()));
    for _ in 0..tiers {
        let mut next = vec![None; chain.len()];
        for (n, slot) in next.iter_mut().enumerate().skip(1) {
            let ways = (0..n).filter_map(|m| Some((m, areas[m].as_ref()?)));
            *slot = ways
                .map(|(m, (area, taken))| (area + between(m, n), taken))
                .min_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(area, taken)| (area, taken.iter().copied().chain([n]).collect()));
        }
        areas = next;
    }
    areas.pop().flatten().map(|(area, taken)| (taken, area))
}

#[cfg(test)]
#[path = "pareto_tests.rs"]
mod tests;
