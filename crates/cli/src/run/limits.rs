//! What keeps an application from saving more, in pages and money, and why pages were refused: in
//! words, with what would help.

use serde_json::{json, Value};
use terrace_core::plan::{weigh, Place, Why, TIME_IS_DEAR_UP_TO};
use terrace_core::tier::TierId;

use super::answer::cheapest;
use super::decisions::Snapshot;
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
    let (dram, least) = (price(0), price(cheapest(last)));
    let [mut unknown, mut back, mut underway, mut dearer] = [Held::default(); 4];
    let [mut in_use, mut processor, mut waiting, mut budget] = [Held::default(); 4];
    if let Some(plan) = &last.plan {
        let weighing = weigh(&last.views, &last.tiers, plan.terms, last.usd_per_ns());
        for (index, view) in last.views.iter().enumerate() {
            let (chosen, resident) = (last.chosen(index), u64::from(view.resident));
            let stored = u64::from(view.pages).saturating_sub(resident);
            dearer.add(stored, price(view.tier.index()) - least);
            if view.windows_seen == 0 {
                unknown.add(resident, dram - least);
            } else if chosen != TierId::DRAM {
                let held = if view.tier == TierId::DRAM { &mut underway } else { &mut back };
                held.add(resident, dram - least);
            } else {
                let stays = weighing.places(index).next();
                let any = |is_less: &dyn Fn(&Place, &Place) -> bool| {
                    weighing.places(index).any(|p| stays.is_some_and(|stays| is_less(&p, &stays)))
                };
                let can_save = any(&|p, stays| p.usd_per_month < stays.usd_per_month);
                let best = weighing.best(index).map_or(TierId::DRAM, |best| best.tier);
                let held = match (can_save, best) {
                    (false, _) if any(&Place::spares_memory) => &mut processor,
                    (false, _) => &mut in_use,
                    (true, TierId::DRAM) => &mut budget,
                    (true, _) => &mut waiting,
                };
                held.add(resident, dram - least);
            }
        }
    }
    let mut untracked = Held::default();
    untracked.add(untracked_bytes(config, last) / 4096, dram - least);

    let why = last.plan.as_ref().map(|plan| plan.why);
    let not_worth = match why {
        Some(Why::WithinSlowdown { is_spent: false, worth, .. }) => Some(format!(
            "would save too little for its time: a per cent of slowdown must save {} % of the \
             memory, and less where --max-slowdown accepts more than {} %",
            (worth * 1000.0).round() / 1000.0,
            TIME_IS_DEAR_UP_TO * 100.0
        )),
        _ => None,
    };
    let more = match why {
        Some(Why::WithinSlowdown { is_spent: false, .. }) => "it would not be worth that",
        Some(Why::WithinSlowdown { .. }) => "raise --max-slowdown to let it go",
        Some(Why::WithinBudget { .. } | Why::OverBudget { .. }) => "lower --alpha to let it go",
        Some(Why::Waterfall { .. }) => "raise --threshold to let it go",
        _ => "another policy may let it go",
    };
    let locked = match locked_bytes {
        0 => String::new(),
        bytes => format!("; the program has locked {} KiB, which stays", bytes >> 10),
    };
    let all = [
        match not_worth {
            Some(text) => ("not_worth", budget, text),
            None => {
                let text = format!("would cost more time than the budget has for it: {more}");
                ("budget", budget, text)
            }
        },
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
            "would pay, and waits: moves are paced, a medium may be full, or the budget was broken"
                .into(),
        ),
        (
            "dearer_tier",
            dearer,
            format!("in tiers already, but not in the cheapest one, which is slower: {more}"),
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

/// What is resident and neither a followed region, nor a pool in memory, nor the runtime.
fn untracked_bytes(config: &Config, last: &Snapshot) -> u64 {
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
    use terrace_core::wire::REFUSALS;

    #[test]
    fn every_refusal_has_words_and_a_remedy() {
        let unknown = refusal("");
        for reason in REFUSALS {
            assert_ne!(refusal(reason), unknown, "{reason}");
        }
    }
}
