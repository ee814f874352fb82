//! What a program's memory has cost since the start, against DRAM.

use serde_json::Value;
use terrace_core::cost::BYTES_PER_GIB;

/// Sums over windows: what the memory would have cost in DRAM, and what of that was saved. Both in
/// GiB of DRAM times seconds, so that their quotient is the share of the bill that was saved,
/// whatever a GiB costs and however long windows were.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Bill {
    /// All of the program's memory.
    pub managed_gib_s: f64,
    /// Saved of it; below 0 for a loss.
    pub saved_gib_s: f64,
    /// When the newest window ended, in seconds since the program was first seen.
    until_s: f64,
}

impl Bill {
    /// Takes in a window that ended at `until_s` (seconds since the program was first seen), with
    /// this much memory and this share of its cost saved, as it stood at the end of the window.
    pub(super) fn add(&mut self, until_s: f64, managed_bytes: u64, saved: f64) {
        let gib_s = managed_bytes as f64 / BYTES_PER_GIB * (until_s - self.until_s).max(0.0);
        self.managed_gib_s += gib_s;
        self.saved_gib_s += gib_s * saved;
        self.until_s = until_s;
    }
}

/// The share of the bill that was saved, by an application's `totals`; `None` before there is one.
pub(super) fn share_saved(totals: &Value) -> Option<f64> {
    let all = totals["managed_gib_s"].as_f64().filter(|gib_s| *gib_s > 0.0)?;
    Some(totals["saved_gib_s"].as_f64()? / all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn windows_count_by_their_length_and_by_their_memory() {
        let gib = 1 << 30;
        let mut bill = Bill::default();
        bill.add(9.0, gib, 0.7);
        // Everything is touched on the way out.
        bill.add(10.0, gib, -0.3);
        let share = |bill: Bill| {
            let Bill { managed_gib_s, saved_gib_s, .. } = bill;
            share_saved(&json!({ "managed_gib_s": managed_gib_s, "saved_gib_s": saved_gib_s }))
        };
        assert!((share(bill).unwrap() - 0.6).abs() < 1e-12, "{bill:?}");
        // Nine times the memory for a second costs as much as the first nine.
        bill.add(11.0, 9 * gib, 0.0);
        assert!((share(bill).unwrap() - 6.0 / 19.0).abs() < 1e-12, "{bill:?}");
        assert_eq!(share(Bill::default()), None);
    }
}
