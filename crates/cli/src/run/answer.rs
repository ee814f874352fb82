//! What a session answers to `terrace explain`: the application, or one region of it.
//!
//! The sums are those of the plan ([`terrace_core::plan::weigh`] with the terms that it left), over
//! the inputs that it had. What only the address space can say, such as names of mappings, is for
//! the asker to add.

use serde_json::{json, Value};
use terrace_core::cost::{cheapest_tier, TierCost};
use terrace_core::hindsight::{Past, Record};
use terrace_core::plan::{weigh, Place, Why};
use terrace_core::tier::{MediumKind, TierId};
use terrace_core::wire::REFUSALS;

use super::application::FAULTS_TO_TRUST;
use super::decisions::{Decisions, Snapshot};
use super::session::Shared;
use super::{limits, reason};
use crate::config::Config;
use crate::explain::{place, Question};

/// Bytes of a region.
const REGION_BYTES: u64 = terrace_core::state::REGION_BYTES;

/// Answers a question; an object with `error` where there is no answer.
pub(super) fn answer(question: &Question, shared: &Shared) -> Value {
    let pid = question.pid;
    let Some(decisions) = shared.decisions(pid) else {
        return json!({ "error": format!("process {pid} has ended") });
    };
    let is_published = shared.applications().get(pid).is_some();
    let Some(last) = decisions.last().filter(|_| is_published) else {
        let why = format!("the first window of process {pid} is not finished yet; ask again");
        return json!({ "error": why });
    };
    let asked = Asked { question, shared, decisions: &decisions, last: &last };
    match question.address {
        None => asked.application(),
        Some(address) => asked.region(address),
    }
}

struct Asked<'a> {
    question: &'a Question,
    shared: &'a Shared,
    decisions: &'a Decisions,
    last: &'a Snapshot,
}

impl Asked<'_> {
    fn config(&self) -> &Config {
        &self.shared.config
    }

    /// What both answers begin with.
    fn head(&self) -> Value {
        let applications = self.shared.applications();
        let status = applications.get(self.question.pid);
        let said = |key: &str| status.map_or(Value::Null, |s| s.last[key].clone());
        let (last, config) = (self.last, self.config());
        let why = match &last.plan {
            Some(plan) => plan.why.to_string(),
            None => "the policy is none: nothing is moved".into(),
        };
        json!({
            "pid": self.question.pid,
            "command": status.map_or("", |s| &s.command),
            "supervisor_pid": std::process::id(),
            "window": last.report.window,
            "window_s": config.run.window_s,
            "lost": said("lost"),
            "policy": {
                "kind": said("policy"),
                "preset": said("preset"),
                "alpha": said("alpha"),
                "budget_money": said("budget_money"),
                "max_slowdown": said("max_slowdown"),
                "threshold": said("threshold"),
                "two_tier": said("two_tier"),
                "promotion_rate": said("cold_age")["promotion_rate_allowed"],
                "cooling_windows": config.run.cooling_windows,
                "why": why,
            },
            "usd_per_stall_s": last.usd_per_s,
            "usd_per_stall_s_is_from_plan": last.is_price_of_plan,
        })
    }

    fn name(&self, tier: TierId) -> &str {
        name(self.config(), tier)
    }

    // ---- the application ---------------------------------------------------------------------

    fn application(&self) -> Value {
        let last = self.last;
        let mut all = self.head();
        all["gap"] = gap(last).into();
        all["budget"] = self.budget();
        all["tiers"] = self.tiers();
        all["groups"] = self.groups();
        all["untracked_bytes"] = limits::untracked_bytes(self.config(), last).into();
        all["limits"] = limits::limits(self.config(), last, self.locked_bytes());
        all["refusals"] = self.refusals();
        let names = self.config().tiers.iter().map(|t| t.name.as_str());
        all["hindsight"] = self.decisions.hindsight(names);
        let plans = self.decisions.plans(self.question.top, |plan| {
            let moves = plan.moves.iter().map(|(&(from, to), &(regions, pages))| {
                let (from, to) = (self.name(from), self.name(to));
                json!({ "from": from, "to": to, "regions": regions, "pages": pages })
            });
            json!({ "window": plan.window, "why": plan.why, "moves": moves.collect::<Value>() })
        });
        all["plans"] = plans.into();
        let past = self.decisions.past(self.question.top);
        all["ended"] = past.iter().map(|p| self.past(p)).collect();
        all
    }

    /// What the policy may spend, what its plan does, and what is left.
    fn budget(&self) -> Value {
        let Some(plan) = &self.last.plan else { return Value::Null };
        let of = |of: &str, unit: &str, allowed: f64, spent: f64| {
            let left = allowed - spent;
            json!({ "of": of, "unit": unit, "allowed": allowed, "spent": spent, "left": left })
        };
        match plan.why {
            Why::WithinSlowdown { budget_ns, target, newest, .. } => {
                let (allowed, spent) = (budget_ns / 1e6, plan.expected_perf_ns / 1e6);
                let mut budget = of("time", "ms a window", allowed, spent);
                budget["slowdown_accepted"] = target.into();
                budget["slowdown_newest"] = newest.into();
                budget
            }
            Why::WithinBudget { budget, .. } | Why::OverBudget { budget, .. } => {
                of("money", "USD a month", budget, plan.expected_tco)
            }
            Why::WithinMoney { left, .. } => of("money", "USD a month", left, plan.expected_tco),
            // The cheapest one counts what is not in regions, and so does what is allowed.
            Why::OverMoney { budget, cheapest } => of("money", "USD a month", budget, cheapest),
            Why::Waterfall { .. } => match self.config().policy.threshold.share() {
                Some(share) => {
                    let all: u64 = plan.recommended.iter().sum();
                    let down = all - plan.recommended[0];
                    of("data", "pages in tiers", share * all as f64, down as f64)
                }
                None => Value::Null,
            },
            _ => Value::Null,
        }
    }

    fn tiers(&self) -> Value {
        let (last, config) = (self.last, self.config());
        let resident: u64 = last.views.iter().map(|v| u64::from(v.resident)).sum();
        let recommended =
            |n: usize| last.plan.as_ref().map_or(Value::Null, |p| p.recommended[n].into());
        let one = |n: usize, cost: &TierCost, pages: u64| {
            json!({
                "name": name(config, TierId(n as u8)),
                "fault_us": cost.fault_ns / 1e3,
                "ratio": cost.ratio,
                "usd_per_gib_month": cost.usd_per_gib_month,
                "usd_per_gib_month_kept": cost.ratio * cost.usd_per_gib_month,
                "emulated": is_emulated(config, n),
                "pages": pages,
                "recommended_pages": recommended(n),
            })
        };
        let dram = last.tiers.first().map(|cost| one(0, cost, resident));
        let others = (1..).zip(last.tiers.iter().skip(1)).zip(&last.report.tiers);
        let others = others.map(|((n, cost), report)| {
            let mut tier = one(n, cost, report.pages);
            tier["faults_total"] = report.faults.into();
            tier["fault_us_is_measured"] = (report.faults >= FAULTS_TO_TRUST).into();
            tier
        });
        dram.into_iter().chain(others).collect()
    }

    /// Neighbouring regions taken together, the largest first.
    fn groups(&self) -> Value {
        let views = &self.last.views;
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (at, view) in views.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if views[run.end - 1].id + REGION_BYTES == view.id => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        let pages =
            |run: &std::ops::Range<usize>| views[run.clone()].iter().map(|v| u64::from(v.pages));
        runs.sort_by_cached_key(|run| std::cmp::Reverse(pages(run).sum::<u64>()));
        let group = |run: &std::ops::Range<usize>| {
            let views = &views[run.clone()];
            let sum = |of: fn(&terrace_core::plan::RegionView) -> u32| -> u64 {
                views.iter().map(|v| u64::from(of(v))).sum()
            };
            let mut regions_in = vec![0u64; self.last.tiers.len()];
            for index in run.clone() {
                if let Some(n) = regions_in.get_mut(self.last.chosen(index).index()) {
                    *n += 1;
                }
            }
            let hotness: f64 = views.iter().map(|v| f64::from(v.hotness_usable())).sum();
            json!({
                "start": views.first().map(|v| v.id),
                "end": views.last().map(|v| v.id + REGION_BYTES),
                "regions": views.len(),
                "pages": sum(|v| v.pages),
                "resident_pages": sum(|v| v.resident),
                "touched_pages": hotness,
                "regions_in": regions_in,
            })
        };
        let mut groups: Value = runs.iter().take(self.question.top).map(group).collect();
        if let Some(groups) = groups.as_array_mut().filter(|_| runs.len() > self.question.top) {
            let rest = &runs[self.question.top..];
            let pages: u64 = rest.iter().flat_map(pages).sum();
            groups.push(json!({ "others": rest.len(), "pages": pages }));
        }
        groups
    }

    fn refusals(&self) -> Value {
        let tiers = self.config().tiers.iter().zip(&self.last.report.tiers);
        let mut counts = [0; REFUSALS.len()];
        for (_, tier) in tiers {
            counts.iter_mut().zip(tier.refused).for_each(|(sum, n)| *sum += n);
        }
        let all = REFUSALS.iter().zip(counts).filter(|(_, pages)| *pages > 0);
        all.map(|(reason, pages)| {
            let (text, remedy) = limits::refusal(reason);
            json!({ "reason": reason, "pages": pages, "text": text, "remedy": remedy })
        })
        .collect()
    }

    fn locked_bytes(&self) -> u64 {
        let path = format!("/proc/{}/status", self.question.pid);
        place::locked_by_program(&std::fs::read_to_string(path).unwrap_or_default())
    }

    // ---- one region --------------------------------------------------------------------------

    fn region(&self, address: u64) -> Value {
        let mut all = self.head();
        all["address"] = address.into();
        let start = address & !(REGION_BYTES - 1);
        let Some(index) = self.last.find(address) else {
            all["tracked"] = false.into();
            // It may have been followed once.
            all["past"] = self.past_of(start);
            return all;
        };
        let last = self.last;
        let view = &last.views[index];
        let chosen = last.chosen(index);
        all["tracked"] = true.into();
        all["region"] = json!({
            "start": start,
            "end": start + REGION_BYTES,
            "pages": view.pages,
            "resident_pages": view.resident,
            "resting_pages": view.cooling,
            "stored_pages": view.pages.saturating_sub(view.resident),
            "tier": self.name(view.tier),
            "touched_pages": view.hotness_usable(),
            "touched_newest_first": last.touches(index),
            "windows_seen": view.windows_seen,
        });
        all["chosen"] = self.name(chosen).into();
        let (open, _) = self.decisions.of_region(start, 0);
        all["open"] = open.map_or(Value::Null, |record| self.record(&record));
        all["past"] = self.past_of(start);
        let Some(plan) = &last.plan else {
            all["why"] = "the policy is none: nothing is moved".into();
            all["alternatives"] = json!([]);
            return all;
        };
        let weighing =
            weigh(&last.views[index..=index], &last.tiers, plan.terms, last.usd_per_ns());
        let places: Vec<Place> = weighing.places(0).collect();
        let best = weighing.best(0).map(|best| best.tier);
        let alternatives = places.iter().map(|place| {
            json!({
                "tier": self.name(place.tier),
                "usd_per_month": place.usd_per_month,
                "faults_per_window": place.faults,
                "stall_us_per_window": place.stall_ns / 1e3,
                "move_cpu_us": place.move_ns / 1e3,
                "usd_per_month_in_all": place.usd_in_all,
                "is_chosen": place.tier == chosen,
                "is_here": place.tier == view.tier,
                "is_best": Some(place.tier) == best,
            })
        });
        all["alternatives"] = alternatives.collect();
        let name = |tier| self.name(tier).to_string();
        all["why"] = reason::of_region(last, index, &places, &name).into();
        all
    }

    fn past_of(&self, region: u64) -> Value {
        let (_, past) = self.decisions.of_region(region, self.question.top);
        past.iter().map(|p| self.past(p)).collect()
    }

    fn past(&self, past: &Past) -> Value {
        let mut all = self.record(&past.record);
        all["until_window"] = past.until.into();
        all["end"] = past.end.name().into();
        all
    }

    fn record(&self, record: &Record) -> Value {
        let effect = record.effect;
        json!({
            "region": record.region,
            "window": record.window,
            "from": self.name(record.from),
            "to": self.name(record.to),
            "touched_pages": record.hotness,
            "pages": record.pages,
            "faults": effect.faults,
            "saved_usd": effect.saved_usd,
            "stall_ms": effect.stall_ns / 1e6,
            "move_cpu_ms": effect.move_ns / 1e6,
            "usd_per_stall_s": record.usd_per_s,
            "balance_usd": record.balance_usd(),
            "is_right": record.has_begun().then(|| record.is_right()),
            "again_after_windows": record.again_after,
        })
    }
}

/// Name of a tier as the configuration has it.
pub(super) fn name(config: &Config, tier: TierId) -> &str {
    match tier.index().checked_sub(1) {
        None => &config.dram().name,
        Some(n) => config.tiers.get(n).map_or("?", |t| &t.name),
    }
}

/// Whether the medium of the tier with this index is emulated.
fn is_emulated(config: &Config, tier: usize) -> bool {
    let spec = tier.checked_sub(1).and_then(|n| config.tiers.get(n));
    spec.is_some_and(|spec| spec.medium.kind == MediumKind::Emulated)
}

/// Index of the tier that keeps a page for the least money.
pub(super) fn cheapest(last: &Snapshot) -> usize {
    cheapest_tier(&last.tiers)
}

/// How far the plan may be from the best one, as a share.
fn gap(last: &Snapshot) -> Option<f64> {
    match last.plan.as_ref()?.why {
        Why::WithinBudget { gap, .. }
        | Why::WithinMoney { gap, .. }
        | Why::WithinSlowdown { gap, .. } => Some(gap),
        _ => None,
    }
}
