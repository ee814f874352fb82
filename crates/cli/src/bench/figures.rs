//! Figures of repetitions: medians, and what else was going on.

use std::cmp::Ordering;

/// The lower of the two middle values where there are two; zero for none.
pub(super) fn median<T: Copy + PartialOrd + Default>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// Runnable threads of the whole machine, averaged over a minute.
pub(crate) fn loadavg() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_values_that_were_measured() {
        assert_eq!(median([3u64, 1, 90, 2].into_iter()), 2);
        assert_eq!(median([1.0, 0.5, 9.0].into_iter()), 1.0);
        assert_eq!(median(std::iter::empty::<f64>()), 0.0);
    }
}
