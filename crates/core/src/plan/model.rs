//! What plans count with beside hotness and the costs of tiers: how long pages stay when they come
//! back, and what processor time counts.

use crate::cost::{self, TierCost};

/// What the paper's equations leave out.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Model {
    /// Windows that a page which faulted back stays in DRAM, on average; 0 or more.
    pub residence_windows: f64,
    /// Price of processor time, in faults and in taking their pages down again: US dollars a month
    /// for one nanosecond in every window; 0 or more. What is paid for is all of it, whatever share
    /// counts as time.
    pub usd_per_cpu_ns: f64,
    /// The same of bringing a region to its tier, spread over its stay; 0 or more. Above the former
    /// where moves take longer than the tiers' figures say; 0 leaves moves off the bill.
    pub usd_per_move_ns: f64,
    /// Share of the movers' processor time that counts as time, 0 to 1: what the application would
    /// have used.
    pub contention: f64,
    /// Whether a page takes the same time to any tier ([`cost::MOVE_NS_PER_PAGE`]), not what the
    /// tier takes. For a budget of money the same is better: with the tiers' own times more and
    /// warmer pages went to lz4, and the program lost 2 % more for the same savings (live, in two
    /// pairs of runs). A budget of time sees what moves cost, and puts it right.
    pub moves_alike: bool,
    /// Whether a region that goes from a tier to a cheaper one is expected to stay there as long as
    /// it has been in tiers (what has lasted lasts): going there then costs little in any window.
    /// And whether one that goes down from memory is, for the question what its move is worth, for
    /// as long as it has been as cold.
    pub lasts: bool,
}

impl Model {
    /// TierScape's equations as printed.
    pub const PAPER: Model = Model {
        residence_windows: 0.0,
        usd_per_cpu_ns: 0.0,
        usd_per_move_ns: 0.0,
        contention: 1.0,
        moves_alike: true,
        lasts: false,
    };

    /// From the price of a core in US dollars per month and the length of a window in seconds.
    pub fn new(residence_windows: f64, usd_per_core_month: f64, window_s: f64) -> Model {
        let usd_per_cpu_ns = usd_per_cpu_ns(usd_per_core_month, window_s);
        Model { residence_windows, usd_per_cpu_ns, ..Model::PAPER }
    }

    /// Anything that is not a number, or is below nothing, counts as nothing.
    pub(super) fn checked(self) -> Model {
        let at_least_0 = |x: f64| if x.is_finite() { x.max(0.0) } else { 0.0 };
        Model {
            residence_windows: at_least_0(self.residence_windows),
            usd_per_cpu_ns: at_least_0(self.usd_per_cpu_ns),
            usd_per_move_ns: at_least_0(self.usd_per_move_ns),
            contention: at_least_0(self.contention).min(1.0),
            moves_alike: self.moves_alike,
            lasts: self.lasts,
        }
    }

    /// What moving a page to this tier counts for, in nanoseconds.
    pub(super) fn move_ns(self, tier: &TierCost) -> f64 {
        self.contention * self.work_ns(tier)
    }

    /// Processor time of moving a page to this tier, in nanoseconds.
    pub(super) fn work_ns(self, tier: &TierCost) -> f64 {
        if self.moves_alike {
            cost::MOVE_NS_PER_PAGE
        } else {
            tier.move_ns
        }
    }

    /// A page that comes back will be taken down again, which costs `move_ns`.
    pub(super) fn again_ns(self, move_ns: f64) -> f64 {
        if self.residence_windows > 0.0 {
            move_ns
        } else {
            0.0
        }
    }

    /// What a page costs that comes back once in every window from a tier with these times, with
    /// time at `usd_per_ns` (US dollars a month for a nanosecond in every window).
    pub(super) fn back_usd(self, fault_ns: f64, move_ns: f64, usd_per_ns: f64) -> f64 {
        (fault_ns + self.again_ns(move_ns)) * usd_per_ns + fault_ns * self.usd_per_cpu_ns
    }
}

/// US dollars a month for one nanosecond of a processor in every window of `window_s` seconds, from
/// the price of a core.
pub(super) fn usd_per_cpu_ns(usd_per_core_month: f64, window_s: f64) -> f64 {
    usd_per_core_month / (window_s * 1e9)
}
