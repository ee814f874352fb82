//! Why a region is where it is, in a sentence or two.

use terrace_core::plan::{Place, RegionView, Terms, Why};
use terrace_core::tier::TierId;

use super::decisions::Snapshot;

/// The reason for the region at `index`, of which `places` are all alternatives, DRAM first.
/// `name` names a tier.
pub(super) fn of_region(
    last: &Snapshot,
    index: usize,
    places: &[Place],
    name: &dyn Fn(TierId) -> String,
) -> String {
    let (view, chosen) = (&last.views[index], last.chosen(index));
    let Some(plan) = &last.plan else { return String::new() };
    if view.pages == 0 {
        return "It holds no data now, so that there is nothing to move.".into();
    }
    if view.windows_seen == 0 {
        return "Nothing is known of it yet. Regions that were not observed stay where they are."
            .into();
    }
    let touched = touched_and_expected(view, plan.terms);
    match plan.why {
        Why::Waterfall { hotness_max, .. } => {
            let is_up = view.tier == TierId::DRAM || view.is_back_in_dram();
            match (is_up, chosen) {
                (true, TierId::DRAM) => format!(
                    "It is not among the cold: {touched}, and the hottest region that was sent \
                     down has {hotness_max:.1}."
                ),
                (true, to) => {
                    format!("It is among the cold: {touched}. So it goes to {}.", name(to))
                }
                (false, to) if to == view.tier => {
                    format!(
                        "It is in the last tier, {}, and stays as long as it is cold.",
                        name(to)
                    )
                }
                (false, to) => format!(
                    "Most of it stayed untouched in {}. So it goes one tier further, to {}.",
                    name(view.tier),
                    name(to)
                ),
            }
        }
        Why::WithinSlowdown { .. } if view.rest_windows > 0 && chosen == TierId::DRAM => format!(
            "It came back as soon as it was last taken down. So it counts as in full use for {} \
             more windows, longer each time ({touched}).",
            view.rest_windows
        ),
        Why::WithinSlowdown { .. } if chosen == view.tier && chosen != TierId::DRAM => {
            let by_cost = by_cost(last, view.tier, chosen, places, plan.terms, &touched, name);
            by_cost + &what_came_back(view, places)
        }
        Why::Torture { .. } => "A torture run sends everything anywhere, at random.".into(),
        Why::AllInDram => "With alpha 1 all data belongs in DRAM.".into(),
        _ => by_cost(last, view.tier, chosen, places, plan.terms, &touched, name),
    }
}

/// What is known and planned of pages that came back of a region which stays in its tier.
fn what_came_back(view: &RegionView, places: &[Place]) -> String {
    let mut text = String::new();
    if let Some(told) = view.told {
        text += &format!(
            " What to expect of it is told by what came back while it was there: {:.1} pages in a \
             window.",
            told.usual
        );
    }
    let leaves_home = places.get(view.tier.index()).is_some_and(|place| place.leaves_home);
    if let Some(used) = view.used_again.filter(|_| leaves_home) {
        text += &format!(
            " What came back of it stays at home: by samples {:.0} % of it is used again in a \
             window, which would cost more than its place in DRAM.",
            100.0 * used
        );
    }
    text
}

fn by_cost(
    last: &Snapshot,
    here: TierId,
    chosen: TierId,
    places: &[Place],
    terms: Terms,
    touched: &str,
    name: &dyn Fn(TierId) -> String,
) -> String {
    let (Some(dram), Some(place)) = (places.first(), places.get(chosen.index())) else {
        return String::new();
    };
    let least = |of: fn(&Place) -> f64| places.iter().min_by(|a, b| of(a).total_cmp(&of(b)));
    let (Some(best), Some(cheapest)) = (least(|p| p.usd_in_all), least(|p| p.usd_per_month)) else {
        return String::new();
    };
    let memory = least(Place::memory_usd).unwrap_or(dram);
    let per_us = last.usd_per_ns() * 1e3;
    let time = |p: &Place| {
        let us = p.stall_ns / 1e3;
        if us < 0.5 {
            return format!("no waiting, but {:.1} ms of moving once", p.move_ns / 1e6);
        }
        let usd = money(us * per_us);
        format!("{us:.0} us of waiting a window, at the price of time {usd} USD a month")
    };
    let paid = |p: &Place| match p.stall_ns < 500.0 {
        true => "so that nobody waits for it".to_string(),
        false => format!("which is {}", time(p)),
    };
    let better_by = place.usd_in_all - best.usd_in_all;
    let is_better = better_by > 1e-6 * dram.usd_per_month;
    let mut text = if chosen != TierId::DRAM {
        let saved = dram.usd_per_month - place.usd_per_month;
        format!(
            "{} saves {} USD a month of the {} that DRAM costs: {touched}, {}.",
            name(chosen),
            money(saved),
            money(dram.usd_per_month),
            paid(place)
        )
    } else if cheapest.tier == TierId::DRAM && memory.spares_memory(dram) {
        format!(
            "It stays because a core has a price: {touched}. In {} its memory would cost {} USD a \
             month less, and the processor time of bringing it there and of its faults {}.",
            name(memory.tier),
            money(dram.memory_usd() - memory.memory_usd()),
            money(memory.processor_usd)
        )
    } else if cheapest.tier == TierId::DRAM {
        format!(
            "It is in use: {touched}. In a tier it would save nothing, because what comes back \
             lies in DRAM until it has cooled, and bringing it costs processor time."
        )
    } else {
        let what = match (is_better, cheapest.stall_ns < 500.0) {
            (true, _) => "It stays for now",
            // What keeps it is the price of the move.
            (false, true) => "It stays, since the budget is kept without it",
            (false, false) => "It is in use",
        };
        format!(
            "{what}: {touched}. In {} it would save {} USD a month and cost {}.",
            name(cheapest.tier),
            money(dram.usd_per_month - cheapest.usd_per_month),
            time(cheapest)
        )
    };
    if is_better {
        let why = match (chosen == here, last.plan.as_ref().map(|plan| plan.why)) {
            (_, Some(Why::WithinSlowdown { burst: Some(_), .. })) => {
                "far more came back lately than expected, and regions count as they did before that"
                    .into()
            }
            (true, Some(Why::WithinSlowdown { kept, hidden_pages, .. }))
                if kept > 0 && best.tier == TierId::DRAM =>
            {
                format!(
                    "what is touched comes home by itself, and bringing all of it takes more time \
                     than its faults of a window, or another would go down for it that only looks \
                     better: those that went down had {hidden_pages:.0} pages more in use \
                     than they looked"
                )
            }
            (true, Some(Why::WithinSlowdown { .. })) if best.tier == TierId::DRAM => {
                "what is touched comes home by itself, and bringing all of it takes more time than \
                 its faults of a window"
                    .into()
            }
            (true, Some(Why::WithinSlowdown { waiting, .. })) if waiting > 0 => {
                format!("demotions are paced, and {waiting} wait for a later window")
            }
            (true, Some(Why::WithinSlowdown { kept, hidden_pages, .. }))
                if kept > 0 && here == TierId::DRAM =>
            {
                format!(
                    "{kept} regions, of which it is known what they cost in a tier, are not \
                     brought home for ones that look better: those that went down had \
                     {hidden_pages:.0} pages more in use than they looked"
                )
            }
            _ if terms.usd_per_ns.is_none() => {
                "the plan has no price of its own for time, so that the last column is only a \
                 guide"
                    .into()
            }
            _ => "the plan as a whole has no room for it (budget, full media, rounding)".into(),
        };
        text += &format!(
            " {} would be better by {} USD a month in all; {why}.",
            name(best.tier),
            money(better_by)
        );
    }
    text
}

/// The same, and how many more are expected than were looked at.
fn touched_and_expected(view: &RegionView, terms: Terms) -> String {
    let hotness = view.hotness_usable();
    let beyond = terms.pages_beyond(view, f64::from(hotness));
    if beyond < 0.5 {
        return touched(hotness);
    }
    format!(
        "{} by the latest samples, which may have missed {beyond:.0} more: {:.0} were over many \
         windows",
        touched(hotness),
        view.long
    )
}

/// "3.2 of its pages are touched in a window".
fn touched(pages: f32) -> String {
    match pages {
        p if p < 0.05 => "none of its pages are touched in a window".into(),
        p if p < 1.5 => format!("{p:.1} of its pages is touched in a window"),
        p => format!("{p:.1} of its pages are touched in a window"),
    }
}

/// US dollars with two digits that mean something.
fn money(usd: f64) -> String {
    crate::explain::money(usd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::cost::TierCost;
    use terrace_core::hotness::CameBack;
    use terrace_core::plan::{weigh, Measured, Policy, Slowdown};

    /// What is said of a region of which 100 of 512 pages came back, where time is dear.
    fn said(view: RegionView) -> String {
        let dram = TierCost::dram(0.3);
        let tiers = [dram, TierCost { fault_ns: 20_000.0, move_ns: 10_000.0, ratio: 0.5, ..dram }];
        let warm = |n: u64| RegionView {
            pages: 512,
            resident: 512,
            hotness: n as f32,
            windows_seen: 4,
            ..RegionView::at(n << 21, TierId::DRAM)
        };
        let mut regions: Vec<RegionView> = (1..=200).map(warm).collect();
        regions.insert(0, view);
        let mut policy = Slowdown::new(0.05).with_residence(2.5);
        policy.learn(&Measured { running_ns: 5e8, contention: 0.1, ..Measured::default() });
        let plan = policy.plan(&regions, &tiers);
        let price = plan.terms.usd_per_ns.expect("its budget is short");
        let places: Vec<Place> = weigh(&regions, &tiers, plan.terms, price).places(0).collect();
        what_came_back(&view, &places)
    }

    #[test]
    fn it_is_said_what_came_back_and_why_it_stays() {
        let down = RegionView {
            pages: 512,
            resident: 100,
            hotness: 50.0,
            windows_seen: 40,
            since_down_windows: 3,
            ..RegionView::at(0, TierId(1))
        };
        assert_eq!(said(down), "");
        let told = Some(CameBack { usual: 4.25, newest: 4.0, long: 5.0 });
        let text = said(RegionView { told, used_again: Some(0.01), ..down });
        assert!(text.ends_with("while it was there: 4.2 pages in a window."), "{text}");
        let text = said(RegionView { used_again: Some(0.8), ..down });
        assert!(text.contains("by samples 80 % of it is used again in a window"), "{text}");
    }

    #[test]
    fn it_is_said_what_samples_may_have_missed() {
        let view = RegionView { pages: 512, long: 32.0, ..RegionView::at(0, TierId::DRAM) };
        let terms = |as_long| Terms { as_long, ..Terms::NONE };
        let text = touched_and_expected(&view, terms(1.0));
        assert!(text.contains("may have missed 12 more: 32 were over many windows"), "{text}");
        assert!(!touched_and_expected(&view, terms(0.0)).contains("missed"));
        let down = RegionView { tier: TierId(1), ..view };
        assert!(!touched_and_expected(&down, terms(1.0)).contains("missed"));
    }

    #[test]
    fn it_is_said_that_what_is_known_stays_for_what_only_looks_better() {
        let dram = TierCost::dram(0.3);
        let tiers = [dram, TierCost { fault_ns: 70_000.0, move_ns: 8_000.0, ratio: 0.5, ..dram }];
        let view = |id: u64, tier, hotness, resident| RegionView {
            pages: 512,
            resident,
            hotness,
            windows_seen: 40,
            ..RegionView::at(id << 21, TierId(tier))
        };
        let mut policy = Slowdown::new(0.05).with_residence(2.5);
        let measured = Measured { running_ns: 3.34e7, contention: 0.02, ..Measured::default() };
        policy.learn(&measured);
        // Those that went down before had looked wholly cold.
        let gone_down = RegionView { newest: 14.0, down_windows: 1, ..view(9, 1, 3.5, 14) };
        (0..20).for_each(|_| _ = policy.plan(&[gone_down; 12], &tiers));
        // There is time for one, and the one at home looks better.
        let known = RegionView { newest: 20.0, down_windows: 4, ..view(1, 1, 20.0, 0) };
        let views = vec![known, view(2, 0, 3.0, 512)];
        let plan = policy.plan(&views, &tiers);
        let price = plan.terms.usd_per_ns.expect("its budget is short");
        let last = Snapshot {
            touched: vec![Default::default(); 2],
            tiers: tiers.to_vec(),
            report: Default::default(),
            usd_per_s: terrace_core::hindsight::usd_per_second(price, 2.0),
            is_price_of_plan: true,
            window_s: 2.0,
            plan: Some(plan),
            views,
        };
        let said = |index: usize| {
            let terms = last.plan.as_ref().unwrap().terms;
            let one = &last.views[index..=index];
            let places: Vec<Place> = weigh(one, &tiers, terms, price).places(0).collect();
            of_region(&last, index, &places, &|tier: TierId| format!("tier {}", tier.0))
        };
        let waits =
            "1 regions, of which it is known what they cost in a tier, are not brought home \
                     for ones that look better: those that went down had 13 pages more in use than";
        assert!(said(1).contains(waits), "{}", said(1));
        assert!(said(0).starts_with("tier 1 saves"), "{}", said(0));
    }
}
