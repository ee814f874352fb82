//! The last step of the solver: closes the gap between a rounded answer and the linear bound.
//!
//! It starts at the *split* choice, the best one for the price of time `lambda` that the linear
//! relaxation found. For any other choice
//!
//! ```text
//! time - bound = sum of reduced costs + lambda * money left over
//! reduced cost of an option = time + lambda * money, above the item's split option; never negative
//! ```
//!
//! so an option whose reduced cost alone exceeds the gap cannot be part of a better answer. Few
//! options are left: the *core*. Its items are added one by one, most promising first, to a list of
//! partial answers (changes against the split) of which none is both slower and dearer than
//! another; an answer is dropped as soon as its bound, given the best steps of the items still to
//! come, does not beat the best complete answer by more than the accepted gap. This is Pisinger's
//! dynamic programme with an expanding core (MCKNAP, 1995), for real-valued costs.
//!
//! In the example of [`super::mckp`] the gap is 13 - 8.5 = 4.5. Split: A T1, B T2, C T1 with 3
//! dollars of room and lambda 2.5. Reduced costs: A to DRAM -10 + 2.5 * 4 = 0; C to T2
//! 6 - 2.5 * 2 = 1; B to T1 -3 + 5 = 2; all others are 8 or more. A to DRAM and C to T2 change time
//! by -10 + 6 and money by 4 - 2, which fits in 3: time 12.
//!
//! Work is bounded by three constants, each a cut that is reported (`proven` false), never a hang.

use super::mckp::{Choices, GAP_ACCEPTED};

/// Partial answers kept per item. Ten times what random instances need; the best bounds stay.
const STATES_MAX: usize = 20_000;

/// Partial answers made in one search: about 40 ms of one 2 GHz core at 10 ns each, so that a
/// hard instance delays the plan by no more than the plan is allowed to take.
const WORK_MAX: usize = 4_000_000;

/// Items in the core. With so many the gap is below [`GAP_ACCEPTED`] before the search starts.
const CORE_MAX: usize = 8_192;

/// Marks a partial answer that leaves the item at its split option.
const KEEP: u8 = u8::MAX;

/// No change against the split choice.
const ROOT: u32 = u32::MAX;

/// Where the linear relaxation broke off.
pub(super) struct Split {
    pub budget: f64,
    pub perf: f64,
    pub tco: f64,
    /// Price of time: the efficiency of the break step.
    pub lambda: f64,
    pub lp_bound: f64,
}

/// Result of [`Closing::search`].
pub(super) struct Outcome<I> {
    /// `(item, option)` changes against the split choice, if they beat what was known.
    pub changes: Option<I>,
    /// Whether nothing better by more than the accepted gap can exist.
    pub proven: bool,
}

/// Buffers of the search.
#[derive(Debug, Default)]
pub(super) struct Closing {
    items: Vec<CoreItem>,
    options: Vec<CoreOption>,
    states: Vec<State>,
    merged: Vec<Part>,
    scratch: Vec<Part>,
    bounds: Vec<f64>,
    nodes: Vec<Node>,
}

/// An item with options worth looking at: `options[start..end]`.
#[derive(Clone, Copy, Debug)]
struct CoreItem {
    item: u32,
    start: u32,
    end: u32,
    /// Least reduced cost of these options.
    reduced: f64,
    /// Best efficiency of a dearer option, of this item and all later ones; 0 if none.
    up: f64,
    /// Least time per money of a cheaper option, likewise; infinite if none.
    down: f64,
}

/// An option as a change against the item's split option.
#[derive(Clone, Copy, Debug)]
struct CoreOption {
    perf: f64,
    tco: f64,
    option: u8,
}

/// A partial answer as a change against the split choice.
#[derive(Clone, Copy, Debug)]
struct State {
    perf: f64,
    tco: f64,
    node: u32,
}

/// A partial answer being made: `parent` plus one option of the item at hand.
#[derive(Clone, Copy, Debug)]
struct Part {
    perf: f64,
    tco: f64,
    parent: u32,
    option: u8,
}

/// One change, linked to the earlier ones.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    item: u32,
    option: u8,
}

/// The best complete answer so far, and what a partial one is measured against.
struct Target {
    /// Change of time against the split.
    perf: f64,
    /// Gap that is not worth searching for, in time.
    tolerance: f64,
    /// Money left at the split.
    room: f64,
    /// Node and option (of the item at hand) that made it; `None` for the answer that came in.
    made_by: Option<(u32, u32, u8)>,
}

impl Target {
    /// Least time that a partial answer can end at, given the best steps still to come.
    fn bound(&self, perf: f64, tco: f64, up: f64, down: f64) -> f64 {
        let over = tco - self.room;
        if over > 0.0 {
            perf + down * over
        } else {
            perf + up * over
        }
    }

    fn is_hopeless(&self, bound: f64) -> bool {
        bound >= self.perf - self.tolerance
    }
}

impl Closing {
    /// Looks for a choice with less time than `perf_known` (a complete answer that fits).
    pub(super) fn search<C: Choices>(
        &mut self,
        costs: &C,
        split: &Split,
        perf_known: f64,
        choice: &[u8],
    ) -> Outcome<impl Iterator<Item = (u32, u8)> + '_> {
        let mut target = Target {
            perf: perf_known - split.perf,
            tolerance: GAP_ACCEPTED * split.lp_bound,
            room: split.budget - split.tco,
            made_by: None,
        };
        let gap = perf_known - split.lp_bound - target.tolerance;
        let mut proven = self.build_core(costs, split.lambda, gap, choice);
        proven &= self.expand(split.lp_bound - split.perf, &mut target);

        let changes = target.made_by.map(|(parent, item, option)| {
            let nodes = &self.nodes;
            let mut at = parent;
            let earlier = core::iter::from_fn(move || {
                let node = nodes.get(at as usize)?;
                at = node.parent;
                Some((node.item, node.option))
            });
            core::iter::once((item, option)).filter(|change| change.1 != KEEP).chain(earlier)
        });
        Outcome { changes, proven }
    }

    /// Collects the options whose reduced cost is below the gap, most promising item first. False
    /// if there were more than [`CORE_MAX`] such items.
    fn build_core<C: Choices>(&mut self, costs: &C, lambda: f64, gap: f64, choice: &[u8]) -> bool {
        self.items.clear();
        self.options.clear();
        for (item, &chosen) in choice.iter().enumerate() {
            let chosen = usize::from(chosen);
            let start = self.options.len();
            let mut found = CoreItem {
                item: item as u32,
                start: start as u32,
                end: 0,
                reduced: f64::INFINITY,
                up: 0.0,
                down: f64::INFINITY,
            };
            for option in (0..costs.options()).filter(|&option| option != chosen) {
                let perf = costs.perf(item, option) - costs.perf(item, chosen);
                let tco = costs.tco(item, option) - costs.tco(item, chosen);
                let reduced = perf + lambda * tco;
                let useful = (perf < 0.0 && tco > 0.0) || (perf > 0.0 && tco < 0.0);
                if !useful || reduced >= gap {
                    continue;
                }
                if tco > 0.0 {
                    found.up = found.up.max(-perf / tco);
                } else {
                    found.down = found.down.min(perf / -tco);
                }
                found.reduced = found.reduced.min(reduced);
                self.options.push(CoreOption { perf, tco, option: option as u8 });
            }
            if self.options.len() > start {
                found.end = self.options.len() as u32;
                self.items.push(found);
            }
        }
        self.items
            .sort_unstable_by(|a, b| a.reduced.total_cmp(&b.reduced).then(a.item.cmp(&b.item)));
        let whole = self.items.len() <= CORE_MAX;
        self.items.truncate(CORE_MAX);
        let mut later = (0.0, f64::INFINITY);
        for item in self.items.iter_mut().rev() {
            later = (item.up.max(later.0), item.down.min(later.1));
            (item.up, item.down) = later;
        }
        whole
    }

    /// Adds the items one by one. `floor` is the linear bound as a change against the split. True
    /// if the search came to its end.
    fn expand(&mut self, floor: f64, target: &mut Target) -> bool {
        self.nodes.clear();
        self.states.clear();
        self.states.push(State { perf: 0.0, tco: 0.0, node: ROOT });
        let mut whole = true;
        let mut work = 0;
        for index in 0..self.items.len() {
            let item = self.items[index];
            if self.states.is_empty() || target.is_hopeless(floor + item.reduced) {
                return whole; // nothing left to extend, or no later item is worth a change
            }
            if work >= WORK_MAX {
                return false;
            }
            let later = self.items.get(index + 1);
            let (up, down) = later.map_or((0.0, f64::INFINITY), |next| (next.up, next.down));
            work += self.add(item, up, down, target);
            whole &= self.keep_best(up, down, target);
            self.states.clear();
            for part in &self.merged {
                let node = if part.option == KEEP {
                    part.parent
                } else {
                    let parent = part.parent;
                    self.nodes.push(Node { parent, item: item.item, option: part.option });
                    self.nodes.len() as u32 - 1
                };
                self.states.push(State { perf: part.perf, tco: part.tco, node });
            }
        }
        whole
    }

    /// Makes every partial answer with every option of `item` into `merged`, sorted by money with
    /// time falling, and notes complete answers. Returns the work done.
    fn add(&mut self, item: CoreItem, up: f64, down: f64, target: &mut Target) -> usize {
        let options = &self.options[item.start as usize..item.end as usize];
        let stay = [CoreOption { perf: 0.0, tco: 0.0, option: KEEP }];
        let mut work = 0;
        self.merged.clear();
        for option in stay.iter().chain(options) {
            self.scratch.clear();
            let mut old = self.merged.iter().peekable();
            let mut new = self
                .states
                .iter()
                .map(|state| Part {
                    perf: state.perf + option.perf,
                    tco: state.tco + option.tco,
                    parent: state.node,
                    option: option.option,
                })
                .peekable();
            let mut fastest = f64::INFINITY;
            loop {
                let part = match (old.peek(), new.peek()) {
                    (None, None) => break,
                    (Some(_), None) => old.next().copied(),
                    (None, Some(_)) => new.next(),
                    (Some(a), Some(b)) if (a.tco, a.perf) <= (b.tco, b.perf) => old.next().copied(),
                    _ => new.next(),
                };
                let Some(part) = part else { break };
                work += 1;
                if part.perf >= fastest {
                    continue; // another is cheaper and no slower
                }
                fastest = part.perf;
                if part.tco <= target.room && part.perf < target.perf {
                    target.perf = part.perf;
                    target.made_by = Some((part.parent, item.item, part.option));
                }
                if !target.is_hopeless(target.bound(part.perf, part.tco, up, down)) {
                    self.scratch.push(part);
                }
            }
            core::mem::swap(&mut self.merged, &mut self.scratch);
        }
        work
    }

    /// Cuts `merged` to [`STATES_MAX`], keeping the best bounds. False if that lost any.
    fn keep_best(&mut self, up: f64, down: f64, target: &Target) -> bool {
        self.merged.retain(|part| !target.is_hopeless(target.bound(part.perf, part.tco, up, down)));
        if self.merged.len() <= STATES_MAX {
            return true;
        }
        self.bounds.clear();
        self.bounds.extend(self.merged.iter().map(|p| target.bound(p.perf, p.tco, up, down)));
        let (_, &mut worst, _) = self.bounds.select_nth_unstable_by(STATES_MAX - 1, f64::total_cmp);
        let mut left = STATES_MAX;
        self.merged.retain(|p| {
            let stays = left > 0 && target.bound(p.perf, p.tco, up, down) <= worst;
            left -= usize::from(stays);
            stays
        });
        false
    }
}
