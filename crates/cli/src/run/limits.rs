//! What keeps an application from saving more, in pages and money, and why pages were refused: in
//! words, with what would help.

use serde_json::{json, Value};
use terrace_core::plan::{weigh, FarMemory, Place, Plan, Why, TIME_IS_DEAR_UP_TO};
use terrace_core::tier::TierId;

use super::answer::cheapest;
use super::decisions::Snapshot;
use super::full::FullMedia;
use crate::config::Config;

/// One reason why memory is where it is.
#[derive(Clone, Copy, Default)]
struct Held {
    pages: u64,
    /// What its cheapest tier would save, in US dollars a month.
    usd: f64,
}

impl Held {
    fn add(&mut self, pages: u64, usd_per_page: f64) {
        if usd_per_page > 0.0 {
            self.pages += pages;
            self.usd += pages as f64 * usd_per_page;
        }
    }
}

/// Reasons, the most expensive first: an array of `{what, pages, usd_per_month, text}`, where
/// `usd_per_month` is what would be saved if those pages lay in the cheapest tier.
pub(super) fn limits(config: &Config, last: &Snapshot, locked_bytes: u64) -> Value {
    let price = |tier: usize| last.tiers.get(tier).map_or(0.0, |t| t.usd_per_page_month());
    let least_tier = cheapest(last);
    let (dram, least) = (price(0), price(least_tier));
    let [mut unknown, mut back, mut underway, mut dearer, mut full] = [Held::default(); 5];
    let [mut in_use, mut processor, mut waiting, mut budget] = [Held::default(); 4];
    let media = FullMedia::of(config, last);
    if let Some(plan) = &last.plan {
        let weighing = weigh(&last.views, &last.tiers, plan.terms, last.usd_per_ns());
        let takes_all = takes_all(plan.why);
        for (index, view) in last.views.iter().enumerate() {
            let (chosen, resident) = (last.chosen(index), u64::from(view.resident));
            let stored = u64::from(view.pages).saturating_sub(resident);
            let is_full_there = media.is_full(TierId(least_tier as u8));
            let held = if is_full_there { &mut full } else { &mut dearer };
            held.add(stored, price(view.tier.index()) - least);
            if view.windows_seen == 0 {
                unknown.add(resident, dram - least);
            } else if chosen != TierId::DRAM && view.tier == TierId::DRAM {
                underway.add(resident, dram - least);
            } else if chosen != TierId::DRAM {
                // What has cooled would go down again, if there were room.
                let refused = match media.has_refused(chosen) {
                    true => u64::from(view.pages_to_carry(chosen)).min(resident),
                    false => 0,
                };
                full.add(refused, dram - least);
                back.add(resident - refused, dram - least);
            } else {
                let stays = weighing.places(index).next();
                let any = |is_less: &dyn Fn(&Place, &Place) -> bool| {
                    weighing.places(index).any(|p| stays.is_some_and(|stays| is_less(&p, &stays)))
                };
                let saves = |p: &Place, stays: &Place| p.usd_per_month < stays.usd_per_month;
                let best = weighing.best(index).map_or(TierId::DRAM, |best| best.tier);
                let held = if !any(&saves) {
                    if any(&Place::spares_memory) {
                        &mut processor
                    } else {
                        &mut in_use
                    }
                } else if !has_budget(plan.why) {
                    // It weighs nothing, and what a place would cost is not what keeps it.
                    &mut budget
                } else if media.is_full(best)
                    || takes_all && any(&|p, stays| saves(p, stays) && media.is_full(p.tier))
                {
                    &mut full
                } else if best == TierId::DRAM {
                    &mut budget
                } else {
                    &mut waiting
                };
                held.add(resident, dram - least);
            }
        }
    }
    let mut untracked = Held::default();
    untracked.add(untracked_bytes(config, last) / 4096, dram - least);

    let locked = match locked_bytes {
        0 => String::new(),
        bytes => format!("; the program has locked {} KiB, which stays", bytes >> 10),
    };
    let (what, kept) = last.plan.as_ref().map_or(("budget", String::new()), kept_by_policy);
    let all = [
        (what, budget, kept),
        ("full", full, format!("would cost less in a tier whose medium is full: {media}")),
        ("in_use", in_use, "in use: what goes down comes back before it has saved anything".into()),
        (
            "processor",
            processor,
            format!(
                "its memory would cost less in a tier, and the processor time of bringing it there \
                 and of its faults more: a core is at {} dollars a month (usd_per_core_month)",
                config.policy.usd_per_core_month
            ),
        ),
        (
            "waiting",
            waiting,
            "would pay, and waits: moves are paced, or the budget was broken".into(),
        ),
        (
            "dearer_tier",
            dearer,
            format!(
                "in tiers already, but not in the cheapest one{}",
                last.plan.as_ref().map_or("", further)
            ),
        ),
        (
            "back",
            back,
            "of regions in tiers: touched a short while ago and cooling, or refused (below)".into(),
        ),
        ("underway", underway, "about to go down: the last plan sent it".into()),
        (
            "unknown",
            unknown,
            "not observed long enough: regions are planned for from their second window on".into(),
        ),
        (
            "untracked",
            untracked,
            format!(
                "not followed: files and shared memory, mappings under 256 KiB, stacks, and what \
                 is young, changes quickly or is less than three quarters present{locked}"
            ),
        ),
    ];
    let mut all = Vec::from(all);
    all.sort_by(|a, b| b.1.usd.total_cmp(&a.1.usd).then(b.1.pages.cmp(&a.1.pages)));
    let held = |(what, held, text): (&str, Held, String)| {
        let Held { pages, usd } = held;
        json!({ "what": what, "pages": pages, "usd_per_month": usd, "text": text })
    };
    all.into_iter().filter(|(_, held, _)| held.usd > 0.0).map(held).collect()
}

/// Whether a plan weighs what places cost, against an amount of time or of money.
fn has_budget(why: Why) -> bool {
    match why {
        Why::WithinBudget { .. }
        | Why::OverBudget { .. }
        | Why::WithinMoney { .. }
        | Why::OverMoney { .. }
        | Why::WithinSlowdown { .. } => true,
        Why::NothingToPlan
        | Why::AllInDram
        | Why::Waterfall { .. }
        | Why::TwoTier { .. }
        | Why::ColdAge { .. }
        | Why::Torture { .. } => false,
    }
}

/// Whether a plan takes everything down that would save money there, so that nothing but want of
/// room can keep it.
fn takes_all(why: Why) -> bool {
    match why {
        Why::WithinBudget { alpha, .. } => alpha <= 0.0,
        Why::OverBudget { .. } | Why::OverMoney { .. } => true,
        _ => false,
    }
}

/// Why the policy keeps in DRAM what a tier would keep for less money: the reason's name, and words
/// that say what would let it go.
fn kept_by_policy(plan: &Plan) -> (&'static str, String) {
    let money = "would cost time, and the budget of money is kept without it";
    let all_taken =
        "is hardly cheaper in a tier, if at all: the plan is the cheapest that there is";
    let policy = |text: &str| ("policy", text.to_string());
    match plan.why {
        Why::WithinSlowdown { is_spent: false, worth, .. } => (
            "not_worth",
            format!(
                "would save too little for its time: a per cent of slowdown must save {} % of the \
                 memory, and less where --max-slowdown accepts more than {} %",
                (worth * 1000.0).round() / 1000.0,
                TIME_IS_DEAR_UP_TO * 100.0
            ),
        ),
        Why::WithinSlowdown { .. } => (
            "budget",
            "would cost more time than the budget has for it: raise --max-slowdown to let it go"
                .into(),
        ),
        why if takes_all(why) => ("budget", all_taken.into()),
        Why::WithinMoney { .. } | Why::OverMoney { .. } => {
            ("budget", format!("{money}: lower --budget-money to let it go"))
        }
        Why::WithinBudget { .. } | Why::OverBudget { .. } => {
            ("budget", format!("{money}: lower --alpha to let it go"))
        }
        Why::AllInDram => policy("alpha is 1, which keeps everything in DRAM: lower --alpha"),
        Why::Waterfall { .. } | Why::TwoTier { .. } => {
            policy("is not among the cold: raise --threshold to let it go")
        }
        Why::ColdAge { state: FarMemory::WarmingUp, .. } => {
            policy("waits for the end of the warm-up (--cold-age-warm-up-s)")
        }
        Why::ColdAge { state: FarMemory::AtLimit, .. } => {
            policy("stays while the program is at its memory limit, where nothing more is demoted")
        }
        Why::ColdAge { threshold_s, waiting, .. } => {
            let cold = match threshold_s {
                Some(age) => format!("untouched for {age:.1} s"),
                None => "so old that hardly any of it comes back".into(),
            };
            let paced = match waiting {
                0 => String::new(),
                n => format!("; {n} regions are, and wait, since moves are paced"),
            };
            policy(&format!("is not {cold}, as what is cold is: a higher --promotion-rate{paced}"))
        }
        Why::Torture { .. } => policy("a torture run sends everything anywhere, at random"),
        Why::NothingToPlan => policy("there is no tier to go to"),
    }
}

/// Why what is in a tier is not in the cheapest one, as the end of a sentence.
fn further(plan: &Plan) -> &'static str {
    match plan.why {
        Why::WithinSlowdown { is_spent: false, .. } => {
            ", which is slower: it would not be worth that"
        }
        Why::WithinSlowdown { .. } => ", which is slower: raise --max-slowdown to let it go",
        why if takes_all(why) => ", which costs more in faults than it saves, or will be next",
        Why::WithinMoney { .. } | Why::OverMoney { .. } => {
            ", which is slower: lower --budget-money to let it go"
        }
        Why::WithinBudget { .. } | Why::OverBudget { .. } => {
            ", which is slower: lower --alpha to let it go"
        }
        Why::Waterfall { .. } => ": it goes one tier further whenever it stayed untouched",
        Why::TwoTier { .. } => ": the policy has only one (--two-tier)",
        Why::ColdAge { .. } => ", which takes what is older, and is told apart by age alone",
        Why::AllInDram | Why::Torture { .. } | Why::NothingToPlan => "",
    }
}

/// What is resident and neither a followed region, nor a pool in memory, nor the runtime.
pub(super) fn untracked_bytes(config: &Config, last: &Snapshot) -> u64 {
    let resident: u64 = last.views.iter().map(|v| u64::from(v.resident)).sum();
    let tiers = config.tiers.iter().zip(&last.report.tiers);
    let pools = tiers.map(|(spec, t)| {
        t.dram_bytes + if spec.medium.kind.is_resident() { t.pool_bytes } else { 0 }
    });
    let known = resident * 4096 + pools.sum::<u64>() + last.report.runtime_bytes;
    last.report.rss_bytes.saturating_sub(known)
}

/// What a refusal means, and what helps.
pub(super) fn refusal(reason: &str) -> (&'static str, &'static str) {
    match reason {
        "incompressible" => (
            "did not get smaller than cutoff_bytes",
            "a stronger codec, a cheaper medium, a higher cutoff_bytes; what is encrypted stays",
        ),
        "pool_full" => (
            "found no room in the tier's medium",
            "a higher capacity_mib, or another tier beside it",
        ),
        "pinned_or_shared" => (
            "were in use by the kernel (I/O, locks), or shared with a forked child",
            "they go down by themselves once the I/O or the child has ended",
        ),
        "mapping_changed" => (
            "were unmapped, moved or protected while on their way",
            "nothing: the memory changes faster than it is moved",
        ),
        "medium_failed" => (
            "could not be written to the tier's medium",
            "look at the kernel's log for the device, and at free space on the filesystem",
        ),
        "not_stopped" => (
            "were in use by threads that could not be stopped (kernels before 6.8 only)",
            "a newer kernel; a debugger, a long vfork or a lack of CPU time are what is in the way",
        ),
        _ => ("were not taken", "no advice is known for this reason"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ColdAgeConfig;
    use crate::preset::Preset;
    use terrace_core::cost::TierCost;
    use terrace_core::hindsight::{usd_per_second, usd_per_second_default};
    use terrace_core::plan::limits::Limit;
    use terrace_core::plan::{
        Analytical, ColdAgePolicy, Measured, Money, Policy, RegionView, Slowdown, Threshold,
        TwoTier, Waterfall,
    };
    use terrace_core::tier::{Medium, MediumKind};
    use terrace_core::wire::{Report, TierReport, REFUSALS};

    /// Cold regions of DRAM, in a configuration with one tier on a file with room for `mib`, and
    /// what is said of them by `policy`.
    fn said(policy: &mut dyn Policy, mib: u64) -> Vec<(String, String)> {
        let mut config = Config::from_preset(Preset::Auto);
        let place = terrace_core::tier::Place { capacity_bytes: mib << 20, ..Default::default() };
        let disk =
            Medium { name: "disk".into(), kind: MediumKind::File, place, ..Medium::dram(0.1) };
        config.tiers.truncate(1);
        config.tiers[0].medium = disk.clone();
        config.media = vec![Medium::dram(0.3), disk];
        let dram = TierCost::dram(0.3);
        let tiers = vec![dram, TierCost { fault_ns: 20_000.0, usd_per_gib_month: 0.1, ..dram }];
        let cold = |n: u64| RegionView {
            pages: 512,
            resident: 512,
            hotness: (n % 40) as f32 / 4.0,
            windows_seen: 40,
            long: 10.0,
            ..RegionView::at(n << 21, TierId::DRAM)
        };
        let views: Vec<RegionView> = (1..=200).map(cold).collect();
        policy.learn(&Measured { running_ns: 5e9, contention: 0.1, ..Measured::default() });
        let plan = policy.plan(&views, &tiers);
        let report = Report { tiers: vec![TierReport::default()], ..Report::default() };
        let last = Snapshot {
            touched: vec![Default::default(); views.len()],
            tiers,
            report,
            usd_per_s: match plan.terms.usd_per_ns {
                Some(usd_per_ns) => usd_per_second(usd_per_ns, 1.0),
                None => usd_per_second_default(0.3),
            },
            is_price_of_plan: plan.terms.usd_per_ns.is_some(),
            window_s: 1.0,
            plan: Some(plan),
            views,
        };
        let said = limits(&config, &last, 0);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let all = said.as_array().expect("a list").iter();
        all.map(|one| (text(&one["what"]), text(&one["text"]))).collect()
    }

    fn limit(mib: u64) -> Vec<Limit> {
        vec![Limit::new([TierId(1)], (mib << 20) as f64)]
    }

    #[track_caller]
    fn assert_said(policy: &mut dyn Policy, mib: u64, what: &str, part: &str) {
        let said = said(policy, mib);
        let found = said.iter().find(|(key, _)| key == what);
        assert!(found.is_some_and(|(_, text)| text.contains(part)), "{what}, {part}: {said:?}");
    }

    #[test]
    fn a_full_medium_is_named_and_nothing_else_is_blamed() {
        let full = "medium is full: raise capacity_mib of \"disk\", which is 4, or add a tier on";
        for mut policy in [
            Box::new(Analytical::new(0.0).with_limits(limit(4))) as Box<dyn Policy>,
            Box::new(Analytical::for_money(Money::Usd(0.0)).with_limits(limit(4))),
            Box::new(Slowdown::new(0.5).with_limits(limit(4))),
        ] {
            let said = said(&mut *policy, 4);
            let whats: Vec<&str> = said.iter().map(|(what, _)| what.as_str()).collect();
            assert!(said.iter().any(|(w, text)| w == "full" && text.contains(full)), "{said:?}");
            assert!(!whats.contains(&"budget") && !whats.contains(&"waiting"), "{said:?}");
        }
        // With room for all there is none.
        let said = said(&mut Analytical::new(0.0).with_limits(limit(4096)), 4096);
        assert!(said.iter().all(|(what, _)| what != "full"), "{said:?}");
    }

    #[test]
    fn what_would_let_it_go_is_a_knob_of_the_policy_in_force() {
        let roomy = 1 << 20;
        for (mut policy, what, part) in [
            (Box::new(Analytical::new(0.9)) as Box<dyn Policy>, "budget", "lower --alpha to let"),
            (Box::new(Analytical::new(1.0)), "policy", "alpha is 1, which keeps everything in"),
            (
                Box::new(Analytical::for_money(Money::Share(0.9))),
                "budget",
                "kept without it: lower --budget-money",
            ),
            (
                Box::new(Waterfall::new(Threshold::Share(0.2))),
                "policy",
                "not among the cold: raise --threshold",
            ),
            (
                Box::new(TwoTier::new(Threshold::Share(0.2), TierId(1))),
                "policy",
                "not among the cold: raise --threshold",
            ),
            (
                Box::new(ColdAgePolicy::new(ColdAgeConfig::default().settings(1.0))),
                "policy",
                "the end of the warm-up",
            ),
        ] {
            assert_said(&mut *policy, roomy, what, part);
            let said = said(&mut *policy, roomy);
            assert!(said.iter().all(|(_, text)| !text.contains("the budget has for it")));
        }
    }

    #[test]
    fn what_found_no_room_is_said_of_what_would_go_down_again() {
        let mut config = Config::from_preset(Preset::Auto);
        let place = terrace_core::tier::Place { capacity_bytes: 8 << 20, ..Default::default() };
        let disk =
            Medium { name: "disk".into(), kind: MediumKind::File, place, ..Medium::dram(0.1) };
        config.tiers.truncate(1);
        config.tiers[0].medium = disk.clone();
        config.media = vec![Medium::dram(0.3), disk];
        let tier = TierCost { fault_ns: 2e4, usd_per_gib_month: 0.1, ..TierCost::dram(0.3) };
        let down = RegionView {
            pages: 512,
            resident: 500,
            cooling: 100,
            windows_seen: 9,
            ..RegionView::at(1 << 21, TierId(1))
        };
        let said = |pool_bytes, refusals| {
            let mut report = TierReport { pool_bytes, ..TierReport::default() };
            let at = REFUSALS.iter().position(|reason| *reason == "pool_full").expect("a reason");
            report.refused[at] = refusals;
            let tiers = vec![TierCost::dram(0.3), tier];
            let views = vec![down];
            let last = Snapshot {
                touched: vec![Default::default()],
                plan: Some(Waterfall::new(Threshold::Value(9.0)).plan(&views, &tiers)),
                report: Report { tiers: vec![report], ..Report::default() },
                tiers,
                usd_per_s: 1e-6,
                is_price_of_plan: false,
                window_s: 1.0,
                views,
            };
            let all = limits(&config, &last, 0);
            let pages = |what: &str| {
                let all = all.as_array().expect("a list").iter();
                all.clone()
                    .find(|one| one["what"] == what)
                    .map_or(0, |one| one["pages"].as_u64().expect("a count"))
            };
            (pages("full"), pages("back"))
        };
        assert_eq!(said(7 << 20, 3), (400, 100));
        // Nothing was refused, or all of it long ago.
        assert_eq!(said(7 << 20, 0), (0, 500));
        assert_eq!(said(1 << 20, 3), (0, 500));
    }

    #[test]
    fn every_refusal_has_words_and_a_remedy() {
        let unknown = refusal("");
        for reason in REFUSALS {
            assert_ne!(refusal(reason), unknown, "{reason}");
        }
    }
}
