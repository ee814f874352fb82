//! A region's pages and where they are, class by class: the arithmetic that the simulation and the
//! oracle share.

use crate::degrees::{Degrees, CLASSES};
use crate::sim::COOLING_MAX;
use crate::tier::TierId;

/// Pages that are touched alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    pub(crate) pages: f64,
    /// Those at home, all of them while the tier is DRAM.
    pub(crate) home: f64,
    /// How many of those came back in each of the last windows, newest first.
    pub(crate) recent: [f64; COOLING_MAX],
}

impl Part {
    fn of(pages: f64) -> Part {
        Part { pages, home: pages, recent: [0.0; COOLING_MAX] }
    }

    /// Pages that come home when this share of them is touched.
    fn touch(&mut self, share: f64, waits: usize) -> f64 {
        let came = share * (self.pages - self.home);
        self.home += came;
        // Nobody asks for those that have cooled.
        self.recent[..waits.clamp(1, COOLING_MAX)].rotate_right(1);
        self.recent[0] = came;
        came
    }

    /// Pages at home that have not cooled. A page cools wherever its region belongs by now.
    pub(crate) fn warm(&self, waits: usize) -> f64 {
        self.recent.iter().take(waits).sum::<f64>().min(self.home)
    }

    fn shrink(&mut self, by: f64) {
        self.pages *= by;
        self.home *= by;
        self.recent.iter_mut().for_each(|pages| *pages *= by);
    }
}

/// A region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    pub(crate) tier: TierId,
    /// Pages that no tier takes, always at home, and their share of all.
    kept: f64,
    refused: f64,
    /// Classes that there are, and the others' pages.
    classes: usize,
    parts: [Part; CLASSES],
}

impl Body {
    /// All at home; a share of them, 0 to 1, is one that no tier takes.
    pub(crate) fn new(pages: f64, degrees: &Degrees, refused: f64) -> Body {
        let refused = if refused.is_nan() { 0.0 } else { refused.clamp(0.0, 1.0) };
        let taken = pages * (1.0 - refused);
        Body {
            tier: TierId::DRAM,
            kept: pages - taken,
            refused,
            classes: degrees.classes(),
            parts: degrees.shares().map(|share| Part::of(taken * share)),
        }
    }

    /// The classes that there are.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts[..self.classes]
    }

    pub(crate) fn refused(&self) -> f64 {
        self.refused
    }

    pub(crate) fn pages(&self) -> f64 {
        self.kept + self.parts().iter().map(|part| part.pages).sum::<f64>()
    }

    pub(crate) fn home(&self) -> f64 {
        self.kept + self.parts().iter().map(|part| part.home).sum::<f64>()
    }

    pub(crate) fn stored(&self) -> f64 {
        self.parts().iter().map(|part| part.pages - part.home).sum()
    }

    /// Pages at home that came back lately.
    pub(crate) fn warm(&self, waits: usize) -> f64 {
        self.parts().iter().map(|part| part.warm(waits)).sum()
    }

    /// Of those, how many are touched when this share of each class is.
    pub(crate) fn warm_touched(&self, shares: &[f64; CLASSES], waits: usize) -> f64 {
        self.parts().iter().zip(shares).map(|(part, share)| part.warm(waits) * share).sum()
    }

    /// Pages at home that are touched when `shares` of each class and `all` of all pages are.
    pub(crate) fn home_touched(&self, shares: &[f64; CLASSES], all: f64) -> f64 {
        let parts = self.parts().iter().zip(shares).map(|(part, share)| part.home * share);
        self.kept * all + parts.sum::<f64>()
    }

    /// Pages that come home when this share of each class is touched; they wait so many windows.
    pub(crate) fn touch(&mut self, shares: &[f64; CLASSES], waits: usize) -> f64 {
        let parts = self.parts[..self.classes].iter_mut().zip(shares);
        parts.map(|(part, &share)| part.touch(share, waits)).sum()
    }

    /// From now on it has so many pages: what comes is at home and as all others are, what goes is
    /// taken evenly.
    pub(crate) fn resize(&mut self, pages: f64, degrees: &Degrees) {
        let now = self.pages();
        // Shares of classes do not add up to the last digit.
        if (pages - now).abs() < 1e-9 {
            return;
        }
        let parts = &mut self.parts[..self.classes];
        if pages < now {
            self.kept *= pages / now;
            parts.iter_mut().for_each(|part| part.shrink(pages / now));
            return;
        }
        let more = (pages - now) * (1.0 - self.refused);
        self.kept += pages - now - more;
        for (part, share) in parts.iter_mut().zip(degrees.shares()) {
            part.pages += more * share;
            part.home += more * share;
        }
    }

    pub(crate) fn pages_to_move(&self, to: TierId, waits: usize) -> f64 {
        match to {
            TierId::DRAM => self.stored(),
            to if to == self.tier => self.cold(waits),
            _ => self.cold(waits) + self.stored(),
        }
    }

    /// Pages at home that may go down.
    fn cold(&self, waits: usize) -> f64 {
        self.parts().iter().map(|part| part.home - part.warm(waits)).sum()
    }

    pub(crate) fn go(&mut self, to: TierId, waits: usize) {
        for part in &mut self.parts[..self.classes] {
            part.home = if to == TierId::DRAM { part.pages } else { part.warm(waits) };
        }
        self.tier = to;
    }

    /// Takes so many pages down of those that may go, from each class alike, or brings so many
    /// home: what a recording says of a region.
    pub(crate) fn carry(&mut self, down: f64, waits: usize) {
        let (free, stored) = (self.cold(waits), self.stored());
        let part_of = |pages: f64, all: f64| if all > 0.0 { (pages / all).min(1.0) } else { 0.0 };
        for part in &mut self.parts[..self.classes] {
            if down >= 0.0 {
                part.home -= (part.home - part.warm(waits)) * part_of(down, free);
            } else {
                part.home += (part.pages - part.home) * part_of(-down, stored);
            }
        }
    }

    /// As many pages come home in a window as `came`, of each class in proportion to `shares`.
    pub(crate) fn came(&mut self, came: f64, shares: &[f64; CLASSES], waits: usize) {
        let of = |part: &Part, share: &f64| (part.pages - part.home) * share;
        let expected: f64 = self.parts().iter().zip(shares).map(|(p, s)| of(p, s)).sum();
        let by = if expected > 0.0 { came / expected } else { 0.0 };
        self.touch(&shares.map(|share| (share * by).min(1.0)), waits);
    }

    /// Stored pages of each class.
    pub(crate) fn stored_by_class(&self) -> [f64; CLASSES] {
        self.parts.map(|part| part.pages - part.home)
    }
}
