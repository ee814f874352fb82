//! The oracle over all applications of a trace.

use terrace_core::load::Load;
use terrace_core::oracle::{self, Past, Point};
use terrace_core::sim::Machine;

use super::replay::{counted, Outcome};

/// Prices of time that are tried: neighbours differ by less than a factor of 1.5.
const PRICES: usize = 40;

/// What can be saved, for every slowdown.
#[derive(Clone, Debug)]
pub struct Hindsight {
    points: Vec<Point>,
    unmoved: Vec<Point>,
}

/// What can be saved at one slowdown, as shares of the money with all in DRAM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Savings {
    /// By a placement that was found; `None` where each one found is slower.
    pub found: Option<f64>,
    /// By no policy more than this.
    pub bound: f64,
    /// By the best placement that never changes; `None` where each one is slower.
    pub unmoved: Option<f64>,
}

impl Hindsight {
    /// Looks at all applications, over the windows that count.
    pub fn of(loads: &[Load], machine: &Machine) -> Hindsight {
        let prices = oracle::prices(&machine.tiers, PRICES);
        let mut points: Vec<Point> =
            prices.iter().map(|&price| Point { price, ..Point::default() }).collect();
        let mut unmoved = points.clone();
        for load in loads {
            for area in &load.areas {
                let (degrees, clocks) = (&load.degrees, &load.clocks);
                let past = Past::of(machine, degrees, clocks, area, counted(load));
                let add = |sums: &mut [Point], all: Vec<Point>| {
                    sums.iter_mut().zip(&all).for_each(|(sum, point)| sum.add(point));
                };
                add(&mut points, past.best(&prices));
                add(&mut unmoved, past.unmoved(&prices));
            }
        }
        Hindsight { points, unmoved }
    }

    /// What can be saved with the lost time of `outcome`, over the same windows.
    pub fn at(&self, outcome: &Outcome) -> Savings {
        let lost_ns = outcome.stalled_ns + outcome.taken_ns - outcome.watching_ns;
        let saved = |tco: f64| 1.0 - (tco + outcome.fixed) / outcome.tco_all_dram.max(1e-300);
        Savings {
            found: oracle::reached(&self.points, lost_ns).map(saved),
            bound: saved(oracle::bound(&self.points, lost_ns)),
            unmoved: oracle::reached(&self.unmoved, lost_ns).map(saved),
        }
    }
}
