//! What an application that was recorded did to its pages, as far as the recording tells.
//!
//! Live, a window says of a region how many stored pages faulted (exact: every touch of a stored
//! page is a fault) and how many of a few watched pages were touched. The planner has to make
//! something of that at once. Afterwards there is more to go by. The region is followed through the
//! recording, with the moves and faults that it had, as classes of pages in use by degrees
//! ([`crate::degrees`]); what is not known is how much of it is in use in each window:
//!
//! - *In memory*, that is the share of the watched pages that were touched, of the window and its
//!   neighbours, drawn towards the region's own mean: as strongly as regions of this application
//!   keep to theirs.
//! - *In a tier*, it is what makes as many of the pages that are stored by now fault as did, in the
//!   window and its neighbours, or in it alone where that is far from them.
//! - *How uneven* the use is, is what explains best how many of the pages that came back lately
//!   are touched again, when they are watched: next to none if all pages are alike, most of them
//!   if it is always the same ones.
//! - *What no tier takes* is what never was in one, of a region that was sent there. A region that
//!   never was is taken to be like the next one that was.

use crate::body::Body;
use crate::degrees::Degrees;
use crate::hotness::PAGES_PER_REGION;
use crate::load::Area;
use crate::plan::Ratios;
use crate::rhythm::{self, Rhythm, Tally};

/// Windows on either side whose samples and faults speak for a window.
const NEIGHBOURS: usize = 2;
/// Range of the weight of a region's own mean, in samples.
const MEAN_SAMPLES: (f64, f64) = (4.0, 400.0);
/// Samples of a few windows in a row that say something about how regions change.
const BLOCK_SAMPLES: f64 = 8.0;
/// Windows with samples in a tier are worth so many samples in a region's mean.
const STORED_WINDOW_SAMPLES: f64 = 4.0;
/// Stored pages below which faults say little of a region, and weight of its mean in pages.
const STORED_MIN: f64 = 32.0;
const MEAN_STORED: f64 = 16.0;
/// Faults are scattered by chance within so many standard deviations.
const SCATTER: f64 = 4.0;
/// Degrees that are tried, and those of an application that does not tell.
const UNEVENNESS: [f64; 16] =
    [0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0];
const UNEVENNESS_USUAL: f64 = 1.5;
/// What the usual ones weigh: samples of pages that came back.
const USUAL_SAMPLES: f64 = 20.0;
/// Regions that degrees are learnt from.
const REGIONS_TO_LEARN: usize = 2_000;

/// What a recording says of a region in one window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Seen {
    /// Pages that hold data at the end of the window, 0 to 512.
    pub pages: u16,
    /// Those of them in DRAM.
    pub resident: u16,
    /// Whether it belonged to a tier.
    pub is_down: bool,
    /// Pages that were watched: in memory of all, of a region in a tier of those that came back
    /// lately.
    pub samples: u8,
    /// Those of them that were touched.
    pub hits: u8,
    /// Pages that came back because they were touched, those that a scan brought along included.
    pub faults: u16,
}

/// A region's windows as they were recorded.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recorded {
    /// Address.
    pub id: u64,
    /// First window, from 0.
    pub first: usize,
    /// Window by window.
    pub seen: Vec<Seen>,
    /// What its pages shrink to, where that was seen.
    pub ratios: Ratios,
}

/// Makes touches of what was recorded. `waits` is how many windows a page stays after the one in
/// which it came back.
pub fn areas_of(recorded: &[Recorded], waits: usize) -> (Vec<Area>, Degrees) {
    let refused = refused(recorded);
    let mut follow = Follow {
        waits,
        mean_samples: mean_samples(recorded),
        degrees: Degrees::of(UNEVENNESS_USUAL),
        home: Rhythm::default(),
        stored: Rhythm::default(),
    };
    follow.degrees = follow.learn(recorded, &refused);
    for _ in 0..rhythm::ROUNDS {
        follow.learn_rhythms(recorded, &refused);
    }
    let area = |(region, &refused): (&Recorded, &f64)| {
        let course = follow.twice(region, refused);
        let touched = course.shares.iter().zip(&region.seen);
        let pages = |seen: &Seen| seen.pages.min(PAGES_PER_REGION);
        Area {
            id: region.id,
            first: region.first,
            touched: touched.map(|(s, seen)| (s * f64::from(pages(seen))) as f32).collect(),
            pages: region.seen.iter().map(pages).collect(),
            refused: refused as f32,
            ratios: region.ratios,
        }
    };
    let mut areas: Vec<Area> = recorded.iter().zip(&refused).map(area).collect();
    areas.sort_by_key(|area| (area.first, area.id));
    (areas, follow.degrees)
}

/// Share of each region's pages that no tier takes.
fn refused(recorded: &[Recorded]) -> Vec<f64> {
    let own = |region: &Recorded| {
        let down = region.seen.iter().filter(|seen| seen.is_down && seen.pages > 0);
        let share = down.map(|seen| (stored(seen) / f64::from(seen.pages)).min(1.0));
        share.fold(None, |most: Option<f64>, share| Some(most.map_or(share, |m| m.max(share))))
    };
    let mut known: Vec<(u64, f64)> =
        recorded.iter().filter_map(|r| Some((r.id, 1.0 - own(r)?))).collect();
    known.sort_unstable_by_key(|known| known.0);
    let nearest = |id: u64| {
        let at = known.partition_point(|known| known.0 < id);
        let beside = known[at.saturating_sub(1)..(at + 1).min(known.len())].iter();
        beside.min_by_key(|known| known.0.abs_diff(id)).map_or(0.0, |known| known.1)
    };
    recorded.iter().map(|region| nearest(region.id)).collect()
}

/// Pages that were in a tier at some time in a window.
fn stored(seen: &Seen) -> f64 {
    let at_end = seen.pages.saturating_sub(seen.resident);
    f64::from(at_end) + f64::from(seen.faults)
}

/// Sums over windows of a region: samples in memory, and hits.
fn at_home(seen: &[Seen]) -> (f64, f64) {
    let home = seen.iter().filter(|seen| !seen.is_down);
    home.fold((0.0, 0.0), |sum, seen| {
        (sum.0 + f64::from(seen.samples), sum.1 + f64::from(seen.hits))
    })
}

/// What a region's own mean weighs against a window and its neighbours, in samples: much where
/// blocks of windows differ from the mean only as samples do by chance.
fn mean_samples(recorded: &[Recorded]) -> f64 {
    let (mut chance, mut beyond, mut blocks) = (0.0, 0.0, 0.0);
    for region in recorded {
        let (samples, hits) = at_home(&region.seen);
        if samples < 4.0 * BLOCK_SAMPLES {
            continue;
        }
        let mean = hits / samples;
        for block in region.seen.chunks(2 * NEIGHBOURS + 1) {
            let (n, hits) = at_home(block);
            if n >= BLOCK_SAMPLES {
                let off = hits / n - mean;
                chance += mean * (1.0 - mean);
                // Each block is in the mean, too.
                beyond += off * off / (1.0 - n / samples).max(0.1) - mean * (1.0 - mean) / n;
                blocks += 1.0;
            }
        }
    }
    let (low, high) = MEAN_SAMPLES;
    if blocks == 0.0 {
        return low;
    }
    if beyond <= 0.0 {
        return high;
    }
    (chance / beyond).clamp(low, high)
}

/// Follows regions through a recording.
#[derive(Clone)]
struct Follow {
    waits: usize,
    mean_samples: f64,
    degrees: Degrees,
    /// What is used in each window by what usually is: of what is in memory, as samples tell, and
    /// of what is in tiers, as faults do.
    home: Rhythm,
    stored: Rhythm,
}

/// What told how much of a region is in use in a window.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Told {
    /// Nothing.
    Nothing,
    /// Samples of all of it: how many were expected to be touched.
    Samples(f64),
    /// Faults: how many were expected.
    Faults(f64),
}

/// A region's use.
struct Course {
    /// Share of its pages touched, window by window.
    shares: Vec<f64>,
    /// What told it.
    told: Vec<Told>,
    /// Their mean, for windows that say something.
    mean: f64,
    /// Logarithm of how likely what was seen of pages that came back lately is.
    likely: f64,
}

impl Follow {
    fn learn(&self, recorded: &[Recorded], refused: &[f64]) -> Degrees {
        let was_down = |r: &Recorded| r.seen.iter().any(|seen| seen.is_down && seen.samples > 0);
        let some: Vec<(&Recorded, f64)> = recorded
            .iter()
            .zip(refused.iter().copied())
            .filter(|(region, _)| was_down(region))
            .take(REGIONS_TO_LEARN)
            .collect();
        let likely = |&unevenness: &f64| {
            let follow = Follow { degrees: Degrees::of(unevenness), ..self.clone() };
            let of = |&(region, refused): &(&Recorded, f64)| follow.twice(region, refused).likely;
            // As if so many samples more had been as usual, half of a degree from which is hardly
            // less likely.
            let off = unevenness - UNEVENNESS_USUAL;
            some.iter().map(of).sum::<f64>() - USUAL_SAMPLES * off * off / 8.0
        };
        let tried = UNEVENNESS.iter().map(|unevenness| (likely(unevenness), *unevenness));
        let best = tried.reduce(|best, next| if next.0 > best.0 { next } else { best });
        Degrees::of(best.map_or(UNEVENNESS_USUAL, |best| best.1))
    }

    /// Learns by how much more or less than expected of each region was used by all.
    fn learn_rhythms(&mut self, recorded: &[Recorded], refused: &[f64]) {
        let (mut home, mut stored) = (Tally::default(), Tally::default());
        for (region, &refused) in recorded.iter().zip(refused) {
            let course = self.twice(region, refused);
            for ((window, seen), told) in (region.first..).zip(&region.seen).zip(course.told) {
                match told {
                    Told::Nothing => {}
                    Told::Samples(expected) => home.add(window, expected, seen.hits.into()),
                    Told::Faults(expected) => stored.add(window, expected, seen.faults.into()),
                }
            }
        }
        self.home.learn(&home);
        self.stored.learn(&stored);
    }

    /// Once to learn its mean, and again with it.
    fn twice(&self, region: &Recorded, refused: f64) -> Course {
        let (samples, hits) = self.at_home(&region.seen, region.first);
        let mean = if samples > 0.0 { (hits / samples).min(1.0) } else { 0.0 };
        let first = self.once(region, refused, mean);
        self.once(region, refused, first.mean)
    }

    fn once(&self, region: &Recorded, refused: f64, mean: f64) -> Course {
        let seen = &region.seen;
        let mut body = Body::new(0.0, &self.degrees, refused);
        let (shares, told) = (Vec::with_capacity(seen.len()), Vec::with_capacity(seen.len()));
        let mut course = Course { shares, told, mean, likely: 0.0 };
        let (mut weight, mut sum) = self.at_home(seen, region.first);
        for (at, now) in seen.iter().enumerate() {
            body.resize(f64::from(now.pages.min(PAGES_PER_REGION)), &self.degrees);
            body.carry(stored(now) - body.stored(), self.waits);
            let begin = at.saturating_sub(NEIGHBOURS);
            let near = &seen[begin..(at + NEIGHBOURS + 1).min(seen.len())];
            let (window, near_from) = (region.first + at, region.first + begin);
            let is_told_by_faults = now.is_down && body.stored() >= STORED_MIN;
            let (share, told) = match is_told_by_faults {
                true => self.by_faults(&body, (now, window), (near, near_from), mean),
                false => {
                    let (samples, hits) = match now.is_down {
                        false => self.at_home(near, near_from),
                        true => self.watched(now, window),
                    };
                    let usual = (hits + mean * self.mean_samples) / (samples + self.mean_samples);
                    let share = (usual * self.home.at(window)).min(1.0);
                    let is_told = !now.is_down && now.samples > 0;
                    let expected = f64::from(now.samples) * share;
                    (share, if is_told { Told::Samples(expected) } else { Told::Nothing })
                }
            };
            course.told.push(told);
            if is_told_by_faults {
                weight += STORED_WINDOW_SAMPLES * self.stored.at(window);
                sum += STORED_WINDOW_SAMPLES * share;
            }
            let by_class = self.degrees.touched(share);
            let warm = body.warm(self.waits);
            if now.is_down && now.samples > 0 && warm >= f64::from(now.samples) {
                let hot = body.warm_touched(&by_class, self.waits) / warm;
                course.likely += likely(now.samples, now.hits, hot);
            }
            body.came(f64::from(now.faults), &by_class, self.waits);
            course.shares.push(share);
        }
        if weight > 0.0 {
            course.mean = (sum / weight).min(1.0);
        }
        course
    }

    /// Sums over windows of a region, of which the first is `from`: samples in memory, as many as
    /// tell as much in a usual window, and hits.
    fn at_home(&self, seen: &[Seen], from: usize) -> (f64, f64) {
        let home = (from..).zip(seen).filter(|(_, seen)| !seen.is_down);
        home.map(|(window, seen)| self.watched(seen, window))
            .fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    fn watched(&self, seen: &Seen, window: usize) -> (f64, f64) {
        (f64::from(seen.samples) * self.home.at(window), f64::from(seen.hits))
    }

    /// Share of a region that is in use, by what faulted of what is stored, and how many faults
    /// were to be expected.
    fn by_faults(
        &self,
        body: &Body,
        (now, window): (&Seen, usize),
        (near, near_from): (&[Seen], usize),
        mean: f64,
    ) -> (f64, Told) {
        let pages = body.stored_by_class();
        let all = body.stored();
        let usual = self.degrees.touched(mean);
        let usual: f64 = pages.iter().zip(&usual).map(|(pages, share)| pages * share).sum();
        let mut stored_near = MEAN_STORED;
        let mut faults_near = MEAN_STORED * usual / all;
        for (window, seen) in (near_from..).zip(near).filter(|(_, seen)| seen.is_down) {
            stored_near += stored(seen) * self.stored.at(window);
            faults_near += f64::from(seen.faults);
        }
        let expected = all * (faults_near / stored_near * self.stored.at(window)).min(1.0);
        let came = f64::from(now.faults);
        let is_scatter = (came - expected).abs() <= SCATTER * (expected.sqrt() + 1.0);
        let share = self.degrees.share_of(&pages, if is_scatter { expected } else { came });
        (share, Told::Faults(expected))
    }
}

/// Logarithm of how likely so many hits are.
fn likely(samples: u8, hits: u8, share: f64) -> f64 {
    let share = share.clamp(1e-3, 1.0 - 1e-3);
    f64::from(hits) * share.ln() + f64::from(samples.saturating_sub(hits)) * (1.0 - share).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(seen: Vec<Seen>) -> Recorded {
        Recorded { id: 1 << 21, first: 0, seen, ratios: Ratios::UNKNOWN }
    }

    fn touched(seen: Vec<Seen>) -> Vec<f32> {
        areas_of(&[recorded(seen)], 2).0.remove(0).touched
    }

    #[test]
    fn faults_are_exact_and_samples_are_smoothed() {
        // Each goes down again at once.
        let stored =
            Seen { pages: 512, resident: 37, faults: 37, is_down: true, ..Seen::default() };
        let of = areas_of(&[recorded(vec![stored; 4])], 0).0.remove(0).touched;
        assert!(of.iter().all(|t| (t - 37.0).abs() < 2.0), "{of:?}");
        // One hit in 40 samples: 1/40 of the region, not 128 pages in one window and 0 in others.
        let mut seen = vec![Seen { pages: 512, resident: 512, samples: 4, ..Seen::default() }; 10];
        seen[5].hits = 1;
        let of = touched(seen);
        assert!(of.iter().all(|t| *t < 32.0), "{of:?}");
        let mean = of.iter().sum::<f32>() / 10.0;
        assert!((mean - 12.8).abs() < 2.0, "{mean}");
    }

    #[test]
    fn a_burst_stays_in_its_window() {
        let quiet = Seen { pages: 512, resident: 2, faults: 2, is_down: true, ..Seen::default() };
        let mut seen = vec![quiet; 9];
        (seen[4].faults, seen[4].resident) = (500, 500);
        let of = touched(seen);
        assert!(of[4] > 480.0 && of[3] < 20.0 && of[7] < 20.0, "{of:?}");
        // While all of it is back, and nobody looks, all there is to go by is its mean.
        assert!(of[5] < 100.0, "{of:?}");
    }

    /// What is said of regions with this unevenness when they are taken down in window 10, and
    /// again in each window what came back has cooled.
    fn made(unevenness: f64, share: f64) -> Vec<Recorded> {
        let degrees = Degrees::of(unevenness);
        let mut body = Body::new(512.0, &degrees, 0.25);
        let (by_class, waits) = (degrees.touched(share), 2);
        let seen = (0..60).map(|window| {
            if window >= 10 {
                body.go(crate::tier::TierId(1), waits);
            }
            let (pool, hot) = match window < 10 {
                true => (body.home(), body.home_touched(&by_class, share)),
                false => (body.warm(waits), body.warm_touched(&by_class, waits)),
            };
            let samples = if pool < 20.0 { 0 } else { 20 };
            let hits = (f64::from(samples) * hot / pool.max(1.0)).round() as u8;
            let faults = body.touch(&by_class, waits).round() as u16;
            let resident = body.home().round() as u16;
            Seen { pages: 512, resident, is_down: window >= 10, samples, hits, faults }
        });
        let region = recorded(seen.collect());
        (0..20).map(|index| Recorded { id: index << 21, ..region.clone() }).collect()
    }

    #[test]
    fn degrees_are_told_by_what_came_back_and_what_is_refused_by_what_never_went() {
        for unevenness in [0.0, 1.0, 2.0, 3.0] {
            let mut all = made(unevenness, 0.1);
            // One that never was down is like its neighbour.
            all[7].seen.truncate(10);
            let (areas, degrees) = areas_of(&all, 2);
            let found = degrees.unevenness();
            assert!((found - unevenness).abs() <= 0.5, "{found}, not {unevenness}");
            for area in areas {
                assert!((area.refused - 0.25).abs() < 0.02, "{}", area.refused);
                let mean = area.touched.iter().sum::<f32>() / area.touched.len() as f32;
                assert!((mean - 51.2).abs() < 8.0, "{unevenness}: {mean}");
            }
        }
    }

    #[test]
    fn what_changes_is_not_drawn_to_its_mean() {
        let window = |hits| Seen { pages: 512, resident: 512, samples: 4, hits, ..Seen::default() };
        let steady: Vec<Seen> = (0..60).map(|at| window(u8::from(at % 4 == 0))).collect();
        assert_eq!(mean_samples(&[recorded(steady)]), MEAN_SAMPLES.1);
        let phases: Vec<Seen> = (0..60).map(|at| window(4 * u8::from(at / 20 == 1))).collect();
        let of = touched(phases);
        assert!(of[5] < 50.0 && of[30] > 440.0 && of[50] < 50.0, "{of:?}");
    }
}
