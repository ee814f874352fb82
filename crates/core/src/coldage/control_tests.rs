//! The loop, minute by minute, with figures worked by hand.

use super::*;
use crate::coldage::RegionAges;
use crate::hotness::WindowSeen;
use proptest::prelude::*;

/// One window of 1 s is a scan period and a minute; 1 % of the working set may come back.
fn settings() -> Settings {
    Settings {
        promotion_rate: 0.01,
        percentile: 50.0,
        warm_up_s: 3.0,
        minute_s: 1.0,
        scan_s: 1.0,
        window_s: 1.0,
    }
}

/// A window in which 1,000 pages of a region of no age are in use, and these were promotions.
fn minute(control: &mut Control, promotions: &[(u8, f64)]) {
    control.begin_window();
    for &(stored_age, faults) in promotions {
        control.take(&Touched { stored_age, faults, ..Touched::default() }, false);
    }
    control.counting.0 = 1_000.0;
    control.end_window(&[5_000.0, 15_000.0]);
}

#[test]
fn warm_up_percentile_and_spike_by_hand() {
    let mut control = Control::new(settings());
    // 10 promotions a minute are allowed in the quick tier; 10 / 3 in the one three times as slow.
    minute(&mut control, &[(4, 5.0), (8, 2.0)]);
    let facts = control.facts();
    assert_eq!((facts.promotions, facts.promotion_rate), (7.0, 0.007));
    assert_eq!((facts.best, &facts.thresholds), (Some(1), &vec![Some(1), Some(5)]));
    // Warming up: there is no far memory whatever the thresholds are.
    assert_eq!(control.threshold(0), ColdAge::Never);
    minute(&mut control, &[(4, 9.0), (8, 3.0)]);
    assert_eq!(control.facts().thresholds, [Some(5), Some(5)]);
    minute(&mut control, &[(8, 11.0)]);
    assert!(control.facts().is_warm);
    // Best of the quick tier: 1, 5, 9. The median is 5, but the last minute says 9.
    assert_eq!(control.threshold(0), ColdAge::Periods(9));
    minute(&mut control, &[]);
    // 1, 1, 5, 9: the median by nearest rank is 1; of the slow tier 1, 5, 5, 9: 5.
    assert_eq!(control.threshold(0), ColdAge::Periods(1));
    assert_eq!(control.threshold(1), ColdAge::Periods(5));
    assert_eq!(control.threshold(2), ColdAge::Never);
    // Only the minute after the warm-up counts, and it was within.
    assert_eq!((control.facts().minutes_warm, control.facts().minutes_over), (1, 0));
    minute(&mut control, &[(255, 11.0)]);
    assert_eq!(control.threshold(0), ColdAge::Never);
    assert_eq!((control.facts().minutes_warm, control.facts().minutes_over), (2, 1));
}

#[test]
fn touches_of_pages_that_no_tier_takes_are_no_promotions() {
    let mut control = Control::new(settings());
    let hot = Touched { home_age: 9, home: 500.0, watched: 4.0, hits: 4.0, ..Touched::default() };
    for (is_refused, best) in [(true, Some(1)), (false, Some(10))] {
        control.begin_window();
        control.take(&hot, is_refused);
        control.counting.0 = 1_000.0;
        control.end_window(&[5_000.0]);
        assert_eq!(control.facts().best, best);
        assert_eq!(control.facts().promotions, 0.0);
    }
}

#[test]
fn coverage_and_the_working_set_by_hand() {
    let mut control = Control::new(settings());
    // A: 512 pages, half of them touched. B: 512 pages, untouched for two periods. C: 300 stored.
    let mut regions = [RegionAges::default(), RegionAges::default(), RegionAges::new(true)];
    let home = |hits| WindowSeen { present: 512, sampled: 4, hits, ..WindowSeen::default() };
    for _ in 0..2 {
        control.begin_window();
        let seen = [home(2), home(0), WindowSeen { stored: 300, ..WindowSeen::default() }];
        for ((ages, seen), (resident, stored)) in
            regions.iter_mut().zip(seen).zip([(512, 0), (512, 0), (0, 300)])
        {
            let touched = ages.observe(seen, resident);
            control.take(&touched, false);
            control.take_scan(ages, resident, stored);
        }
        control.end_window(&[5_000.0]);
    }
    let facts = control.facts();
    assert_eq!(facts.working_set_pages, 256.0);
    assert_eq!((facts.cold_pages, facts.far_pages), (256.0 + 512.0 + 300.0, 300.0));
    assert!((facts.coverage() - 300.0 / 1_068.0).abs() < 1e-12);
    let by_age: Vec<f64> = (0..4).map(|age| control.cold().at(age)).collect();
    assert_eq!(by_age, [256.0, 256.0, 512.0, 300.0]);
    assert_eq!(control.soft_limit_pages(), 256.0);
    assert_eq!(Facts::default().coverage(), 0.0);
}

#[test]
fn windows_make_scans_and_minutes() {
    let slow = Settings { minute_s: 4.0, scan_s: 2.0, warm_up_s: 4.0, ..settings() };
    let mut control = Control::new(slow);
    for window in 1..=8 {
        assert_eq!(control.is_scan(), window % 2 == 0);
        control.begin_window();
        if control.is_scan() {
            control.counting.0 = f64::from(window);
        }
        control.take(&Touched { stored_age: 3, faults: 1.0, ..Touched::default() }, false);
        control.end_window(&[1.0]);
        assert_eq!(control.facts().minutes, window / 4);
        assert_eq!(control.facts().is_warm, window >= 4);
    }
    // The mean of 6 and 8; four faults in a minute.
    assert_eq!((control.facts().working_set_pages, control.facts().promotions), (7.0, 4.0));
    assert_eq!(control.soft_limit_pages(), 8.0);
}

#[test]
fn nonsense_settings_demote_nothing_or_little() {
    for bad in [f64::NAN, -1.0, f64::INFINITY] {
        let wrong = Settings {
            promotion_rate: bad,
            percentile: bad,
            warm_up_s: bad,
            minute_s: bad,
            scan_s: bad,
            window_s: bad,
        };
        let mut control = Control::new(wrong);
        for _ in 0..3 {
            minute(&mut control, &[(7, 2.0)]);
        }
        assert!(control.facts().promotion_rate.is_finite());
        assert!(control.far_pages_max().is_finite());
    }
}

proptest! {
    /// Sum over the ages = pages, whatever happens to regions.
    #[test]
    fn every_page_has_one_age(
        windows in prop::collection::vec(
            prop::collection::vec(
                (0u16..513, 0u16..9, 0u16..9, 0u16..40, any::<bool>()), 5), 1..30),
    ) {
        let mut control = Control::new(settings());
        let mut regions = [RegionAges::default(); 5];
        for window in windows {
            control.begin_window();
            let mut pages = 0.0;
            for (ages, (resident, sampled, hits, faults, sends)) in regions.iter_mut().zip(window) {
                let stored = 512 - resident;
                let faults = faults.min(resident);
                let seen = WindowSeen {
                    present: resident - faults, stored: stored + faults, sampled, hits, faults,
                };
                let touched = ages.observe(seen, resident);
                control.take(&touched, false);
                control.take_scan(ages, resident, stored);
                pages += 512.0;
                if sends {
                    ages.send_down(resident, stored);
                }
            }
            prop_assert!((control.cold().total() - pages).abs() < 1e-6);
            control.end_window(&[2_000.0, 9_000.0]);
            let facts = control.facts();
            prop_assert!((0.0..=1.0).contains(&facts.coverage()));
            prop_assert!(facts.cold_pages <= pages + 1e-6);
        }
    }

    /// A looser limit never makes the threshold older, a slower tier never younger.
    #[test]
    fn thresholds_are_monotone(
        minutes in prop::collection::vec(
            prop::collection::vec((1u8..=255, 0.0f64..20.0), 0..6), 4..40),
        low in 0.0f64..0.02, more in 0.0f64..0.02, percentile in 0.0f64..100.0,
    ) {
        let with = |promotion_rate| {
            let mut control =
                Control::new(Settings { promotion_rate, percentile, ..settings() });
            minutes.iter().for_each(|promotions| minute(&mut control, promotions));
            control
        };
        let (strict, loose) = (with(low), with(low + more));
        prop_assert!(loose.threshold(0) <= strict.threshold(0));
        prop_assert!(strict.threshold(0) <= strict.threshold(1));
    }
}
