//! Software-defined far memory (Lagar-Cavilla et al., ASPLOS 2019): how long a page must not have
//! been touched to be cold, so that hardly any cold page is touched again.
//!
//! | what | file | section |
//! |---|---|---|
//! | pages by age in scan periods | `histogram.rs` | 5.1 |
//! | the ages of a region, from samples and faults | `region.rs` | 5.1, ours |
//! | best threshold of a minute, percentile, spike rule | `threshold.rs` | 4.3 |
//! | what the samples leave likely | `evidence.rs` | ours |
//! | the loop: scan periods, minutes, warm-up, coverage | `control.rs` | 4.2 to 6.1 |
//!
//! The placement is [`crate::plan::ColdAgePolicy`]. What differs from the paper, and by how much
//! the estimates can be wrong, is in docs/cold-age.md.

mod control;
mod evidence;
mod histogram;
mod region;
mod threshold;

pub use control::{Control, Facts, Settings};
pub use evidence::Evidence;
pub use histogram::{AgeHistogram, AGES, AGE_MAX};
pub use region::{RegionAges, Touched};
pub use threshold::{ColdAge, History, HISTORY_MINUTES};

/// Promotions that are allowed in a minute, as a share of the working set: 0.2 % (section 4.2).
pub const PROMOTION_RATE_DEFAULT: f64 = 0.002;

/// `K`. The paper tunes it and does not tell; the goal it is tuned for is that the limit holds in
/// 98 minutes of 100. Half of what that leaves is for the threshold, the other half for chance.
pub const PERCENTILE_DEFAULT: f64 = 99.0;

/// `S`, in minutes. The paper tunes it too. With ten minutes the first threshold is the highest of
/// ten.
pub const WARM_UP_MINUTES_DEFAULT: f64 = 10.0;

/// Length of a minute, in seconds.
pub const MINUTE_S_DEFAULT: f64 = 60.0;
