//! What the cold-age policy knows, as the timeline and `terrace status` show it.

use serde_json::{json, Value};
use terrace_core::plan::Policy;

use crate::config::ColdAgeConfig;

/// The field `cold_age` of the timeline (docs/timeline.md); null with other policies.
pub(super) fn timeline(policy: Option<&dyn Policy>, config: ColdAgeConfig) -> Value {
    let Some(facts) = policy.and_then(Policy::cold_age) else { return Value::Null };
    let scan_s = facts.scan_s;
    let seconds = |periods: Option<u8>| periods.map(|n| f64::from(n) * scan_s);
    json!({
        "minutes": facts.minutes,
        "is_warm": facts.is_warm,
        "is_at_limit": facts.is_at_limit,
        "threshold_s": seconds(facts.thresholds.iter().flatten().min().copied()),
        "thresholds_s": facts.thresholds.iter().map(|&n| seconds(n)).collect::<Vec<_>>(),
        "threshold_best_s": seconds(facts.best),
        "promotions": facts.promotions as u64,
        "promotion_rate": facts.promotion_rate,
        "promotion_rate_allowed": config.promotion_rate,
        "working_set_pages": facts.working_set_pages.round() as u64,
        "cold_pages": facts.cold_pages.round() as u64,
        "far_pages": facts.far_pages as u64,
        "refused_pages": facts.refused_pages as u64,
        "coverage": facts.coverage(),
        "minutes_warm": facts.minutes_warm,
        "minutes_over": facts.minutes_over,
    })
}
