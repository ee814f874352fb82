//! Where the pages went that a recording says were moved.

use std::collections::HashMap;

use terrace_core::tier::MAX_TIERS;

use crate::trace::read::Trace;
use crate::trace::{ProcessWindow, Row};

/// Pages by the tier that they were moved to.
pub type ByTier = [f64; MAX_TIERS];

/// What a plan would move: regions that change their tier, and what came back and goes down again,
/// of which some has not cooled and stays.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Planned {
    changing: ByTier,
    again: ByTier,
}

/// Pages that were moved in each window of each process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Moved(HashMap<(u32, u32), ByTier>);

impl Moved {
    /// How many it were is in the recording; where to is what the plans said that were carried out.
    pub fn of(trace: &Trace) -> Moved {
        let mut planned: HashMap<(u32, u32), Planned> = HashMap::new();
        for row in &trace.batch.rows {
            // A plan is made at a window's end and carried out in the next.
            let key = (row.pid, row.window.saturating_add(1));
            if let Some((to, pages)) = plan(row) {
                let planned = planned.entry(key).or_default();
                match to == usize::from(row.tier) {
                    true => planned.again[to] += pages,
                    false => planned.changing[to] += pages,
                }
            }
        }
        let of = |(key, process): (&(u32, u32), &ProcessWindow)| {
            let planned = planned.get(key).copied().unwrap_or_default();
            (*key, shared_out(&planned, f64::from(process.moved_pages)))
        };
        Moved(trace.batch.processes.iter().map(of).collect())
    }

    /// Those of one window.
    pub fn by_tier(&self, pid: u32, window: u32) -> ByTier {
        self.0.get(&(pid, window)).copied().unwrap_or_default()
    }
}

/// Where the plan sends a region, and how many pages there are to move at most.
fn plan(row: &Row) -> Option<(usize, f64)> {
    let to = usize::from(row.to?);
    let pages = match to {
        0 => row.pages.saturating_sub(row.resident),
        to if to == usize::from(row.tier) => row.resident,
        _ => row.pages,
    };
    (to < MAX_TIERS).then_some((to, f64::from(pages)))
}

/// So many pages as they were planned: first the regions that change their tier. What nobody
/// planned goes as the rest does, or to the first tier.
fn shared_out(planned: &Planned, moved: f64) -> ByTier {
    let part = |of: f64, all: f64| if all > 0.0 { (of / all).min(1.0) } else { 0.0 };
    let changing: f64 = planned.changing.iter().sum();
    let again: f64 = planned.again.iter().sum();
    let (first, then) = (part(moved, changing), part(moved - changing, again).max(0.0));
    let mut to: ByTier =
        core::array::from_fn(|tier| first * planned.changing[tier] + then * planned.again[tier]);
    let known: f64 = to.iter().sum();
    match known > 0.0 {
        true => to.iter_mut().for_each(|pages| *pages *= moved / known),
        false => to[1] = moved,
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::preset::Preset;
    use crate::sim::costs;
    use crate::trace::write::Batch;
    use crate::trace::Meta;

    #[test]
    fn pages_go_where_the_plan_of_the_window_before_said() {
        let config = Config::from_preset(Preset::Auto);
        let meta = Meta::of(&config, &costs::nominal(&config), "x");
        let region = Row { pid: 7, window: 3, pages: 500, resident: 100, ..Row::default() };
        let rows = vec![
            Row { tier: 1, to: Some(3), ..region },
            Row { tier: 1, to: Some(0), ..region },
            Row { tier: 2, to: Some(2), ..region },
            Row { tier: 1, to: None, ..region },
        ];
        let mut batch = Batch { rows, ..Batch::default() };
        let mut moved = |pages: u32| {
            let process = ProcessWindow { moved_pages: pages, ..ProcessWindow::default() };
            batch.processes.insert((7, 4), process);
            let moved = Moved::of(&Trace { meta: meta.clone(), batch: batch.clone() });
            assert_eq!(moved.by_tier(7, 3), ByTier::default());
            moved.by_tier(7, 4)[..4].to_vec()
        };
        // All of it; what had not cooled stayed; movers that did not get far; more than planned.
        assert_eq!(moved(1000), [400.0, 0.0, 100.0, 500.0]);
        assert_eq!(moved(950), [400.0, 0.0, 50.0, 500.0]);
        assert_eq!(moved(450), [200.0, 0.0, 0.0, 250.0]);
        assert_eq!(moved(2000), [800.0, 0.0, 200.0, 1000.0]);
        batch.rows.clear();
        let process = ProcessWindow { moved_pages: 9, ..ProcessWindow::default() };
        batch.processes.insert((7, 4), process);
        assert_eq!(Moved::of(&Trace { meta, batch }).by_tier(7, 4)[..2], [0.0, 9.0]);
    }
}
