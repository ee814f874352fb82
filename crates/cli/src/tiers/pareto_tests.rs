use super::*;
use crate::demo::random::Random;

const EXACT: Tolerance = Tolerance { latency: 0.0, tco: 0.0 };
const NOISY: Tolerance = Tolerance { latency: 0.05, tco: 0.01 };

fn points(of: &[(f64, f64)]) -> Vec<Point> {
    of.iter().map(|&(us, tco)| Point { fault_ns: us * 1000.0, tco }).collect()
}

/// Points as tiers have them, many of them close together.
fn some(random: &mut Random) -> Vec<Point> {
    let n = 1 + random.below(20) as usize;
    let point = |_| {
        let us = 5.0 + (random.unit() * 20.0).round() * (1.0 + random.unit() * 0.02);
        let tco = 0.1 + (random.unit() * 20.0).round() * 0.05 * (1.0 + random.unit() * 0.004);
        Point { fault_ns: us * 1000.0, tco }
    };
    (0..n).map(point).collect()
}

#[test]
fn a_frontier_by_hand() {
    let p = points(&[(10.0, 0.5), (12.0, 0.4), (12.0, 0.45), (30.0, 0.2), (40.0, 0.3)]);
    assert_eq!(frontier(&p, EXACT), [3, 1, 0]);
    assert_eq!(frontier(&[], EXACT), [] as [usize; 0]);
    assert_eq!(frontier(&points(&[(10.0, 1.0), (12.0, 1.2)]), EXACT), [] as [usize; 0]);
}

#[test]
fn noise_makes_no_frontier() {
    // 2 % faster and half a per cent dearer; only one of the two is worth having.
    assert_eq!(frontier(&points(&[(10.0, 0.5), (9.8, 0.5025)]), NOISY), [0]);
    // Much faster for hardly more: it takes the place of the cheaper one.
    assert_eq!(frontier(&points(&[(10.0, 0.5), (5.0, 0.503)]), NOISY), [1]);
    // A little faster for much more is noise, much cheaper is not.
    assert_eq!(frontier(&points(&[(10.0, 0.5), (9.8, 0.7)]), NOISY), [0]);
    // What saves less than noise saves nothing.
    assert_eq!(frontier(&points(&[(10.0, 0.995)]), NOISY), [] as [usize; 0]);
    // Small steps do not add up: 0.500, 0.504 and 0.508 are not all one price.
    let steps = points(&[(20.0, 0.5), (15.0, 0.504), (10.0, 0.508)]);
    assert_eq!(frontier(&steps, NOISY), [1, 2]);
}

#[test]
fn equals_are_counted_once() {
    assert_eq!(frontier(&points(&[(10.0, 0.5), (10.0, 0.5)]), EXACT).len(), 1);
}

#[test]
fn what_is_not_on_the_frontier_has_a_reason_there() {
    let mut random = Random::new(7);
    for round in 0..3_000 {
        let p = some(&mut random);
        let t = if round % 2 == 0 { EXACT } else { NOISY };
        let on = frontier(&p, t);
        for pair in on.windows(2) {
            let (cheap, fast) = (p[pair[0]], p[pair[1]]);
            assert!(fast.fault_ns < cheap.fault_ns * (1.0 - t.latency), "{p:?} {on:?}");
            assert!(fast.tco > cheap.tco, "{p:?} {on:?}");
        }
        for n in (0..p.len()).filter(|n| !on.contains(n)) {
            let explains = |m: Point| {
                let slower = m.fault_ns * (1.0 - t.latency) <= p[n].fault_ns && m.tco <= p[n].tco;
                let dearer = m.tco <= p[n].tco * (1.0 + t.tco) && m.fault_ns <= p[n].fault_ns;
                slower || dearer
            };
            assert!(on.iter().any(|&m| explains(p[m])) || explains(DRAM), "{n} of {p:?}: {on:?}");
        }
    }
}

#[test]
fn a_tier_above_the_line_between_two_others_is_no_corner() {
    let p = points(&[(10.0, 0.65), (15.0, 0.49), (20.0, 0.2), (5.0, 0.9)]);
    assert_eq!(hull(&p, &[0, 1, 2, 3]), [2], "DRAM and the last make all the others");
    let p = points(&[(10.0, 0.4), (20.0, 0.3), (30.0, 0.25), (25.0, 0.29)]);
    assert_eq!(hull(&p, &[0, 1, 2, 3]), [0, 1, 2]);
}

/// Area under DRAM and `tiers`, level after the last, up to `end_ns`: by integration of the lowest
/// mixture at each latency, without knowing of hulls.
fn area_by_steps(p: &[Point], tiers: &[usize], end_ns: f64) -> f64 {
    const STEPS: usize = 400;
    let all: Vec<Point> = std::iter::once(DRAM).chain(tiers.iter().map(|&t| p[t])).collect();
    let lowest = |ns: f64| {
        let mut lowest: f64 = 1.0;
        for a in &all {
            if a.fault_ns <= ns {
                lowest = lowest.min(a.tco);
            }
            for b in all.iter().filter(|b| a.fault_ns <= ns && b.fault_ns > ns) {
                let share = (ns - a.fault_ns) / (b.fault_ns - a.fault_ns);
                lowest = lowest.min(a.tco + share * (b.tco - a.tco));
            }
        }
        lowest
    };
    let at = |step: usize| (step as f64 + 0.5) / STEPS as f64 * end_ns;
    (0..STEPS).map(|step| lowest(at(step))).sum::<f64>() * end_ns / STEPS as f64
}

#[test]
fn no_set_of_that_size_leaves_a_smaller_area() {
    let mut random = Random::new(11);
    for _ in 0..150 {
        let p = some(&mut random);
        let all: Vec<usize> = (0..p.len().min(9)).collect();
        let corners = hull(&p, &all);
        let Some(&cheapest) = corners.last() else { continue };
        let end_ns = p[cheapest].fault_ns;
        let tiers_max = 1 + random.below(3) as usize;
        let chosen = recommend(&p, &all, tiers_max);
        assert!(chosen.len() <= tiers_max && chosen.contains(&cheapest));
        let area = area_by_steps(&p, &chosen, end_ns);
        for set in 0u32..1 << all.len() {
            let set: Vec<usize> = all.iter().copied().filter(|n| set >> n & 1 == 1).collect();
            if set.len() == chosen.len() && set.contains(&cheapest) {
                let other = area_by_steps(&p, &set, end_ns);
                assert!(area <= other + 1e-3 * end_ns, "{p:?}: {chosen:?} {area}, {set:?} {other}");
            }
        }
    }
}

#[test]
fn the_recommended_are_corners_and_few() {
    let mut random = Random::new(13);
    for _ in 0..500 {
        let p = some(&mut random);
        let on = frontier(&p, NOISY);
        let chosen = recommend(&p, &on, 6);
        assert!(chosen.len() <= 6 && chosen.iter().all(|c| on.contains(c)));
        assert!(chosen.windows(2).all(|w| p[w[0]].fault_ns < p[w[1]].fault_ns));
        assert!(chosen.windows(2).all(|w| p[w[0]].tco > p[w[1]].tco));
        assert_eq!(chosen.is_empty(), on.is_empty());
    }
}

#[test]
fn seven_corners_lose_the_least_useful() {
    // On a parabola every point is a corner; two of the seven lie close together.
    let us = [5.0, 10.0, 15.0, 15.2, 25.0, 30.0, 35.0];
    let p: Vec<Point> = points(&us.map(|us| (us, 0.2 + 0.8 * (1.0_f64 - us / 40.0).powi(2))));
    let all: Vec<usize> = (0..p.len()).collect();
    assert_eq!(hull(&p, &all).len(), 7);
    let chosen = recommend(&p, &all, 6);
    assert!(chosen.len() <= 6 && !(chosen.contains(&2) && chosen.contains(&3)), "{chosen:?}");
    assert_eq!(recommend(&p, &all, 0), [] as [usize; 0]);
    assert_eq!(recommend(&p, &[], 6), [] as [usize; 0]);
}
