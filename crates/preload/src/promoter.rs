//! Bringing regions home because somebody said so, not because of a fault.
//!
//! Pages are decoded on the caller's thread and installed by the pager, a few at a time, where
//! their words have not changed meanwhile.

use crate::pager::moves::Coming;
use crate::region::Region;
use crate::runtime::Runtime;
use crate::silence::Silence;
use crate::stats;
use crate::torture::Torture;
use std::sync::atomic::Ordering;
use terrace_core::state::{PageState, PageWord, PAGE_BYTES, REGION_PAGES};
use terrace_store::pool::Handle;
use terrace_store::{DecoderSet, LoadError, Page, Tier};

/// Pages installed in one call on the pager.
const INSTALL_PAGES: usize = 16;

/// What decoding on one thread needs.
pub struct Promoter {
    rt: &'static Runtime,
    /// Made when it is first needed, by who may fail.
    decoders: Option<DecoderSet>,
    encoded: Box<Page>,
    torture: Torture,
    is_unasked: bool,
    silence: Silence,
}

impl Promoter {
    /// A promoter for the calling thread, who needs every page home.
    pub fn new(rt: &'static Runtime) -> Option<Promoter> {
        let mut promoter = Promoter::with(rt, Torture::new(0, 0), false);
        made(&mut promoter.decoders, rt)?;
        Some(promoter)
    }

    /// For a caller that brings home what nobody waits for, with bad luck. Much of what it needs
    /// is made when the first page is read: many programs never have one.
    pub fn unasked(rt: &'static Runtime, torture: Torture) -> Promoter {
        Promoter::with(rt, torture, true)
    }

    fn with(rt: &'static Runtime, torture: Torture, is_unasked: bool) -> Promoter {
        let encoded = Box::new([0; PAGE_BYTES]);
        let silence = Silence::default();
        Promoter { rt, decoders: None, encoded, torture, is_unasked, silence }
    }

    /// Brings every stored page of a region home. Returns how many came.
    pub fn promote(&mut self, region: &'static Region) -> u64 {
        let mut pages = 0;
        let mut batch: Vec<(usize, PageWord, Box<Page>)> = Vec::with_capacity(INSTALL_PAGES);
        for i in 0..REGION_PAGES {
            let w = region.word(i);
            if matches!(w.state(), PageState::Stored | PageState::Same) {
                let mut page = Box::new([0; PAGE_BYTES]);
                if self.fetch(region, i, w, &mut page) {
                    batch.push((i, w, page));
                }
            }
            if batch.len() == INSTALL_PAGES || (i == REGION_PAGES - 1 && !batch.is_empty()) {
                let ready = std::mem::take(&mut batch);
                if self.torture.gives_up() {
                    stats::add(&self.rt.stats.given_up_pages, ready.len() as u64);
                    continue;
                }
                let mut coming = Coming::new(region, ready);
                pages += self.rt.doorbell.call_in_parts(move |pager| pager.install(&mut coming));
            }
        }
        pages
    }

    /// Loads the page that a `Stored` word names. What the result means is only known if the word
    /// is the same afterwards.
    pub fn load(&mut self, w: PageWord, page: &mut Page) -> Result<(), LoadError> {
        self.ask(w, |promoter| {
            // Without memory for them the page stays where it is, as behind a medium that fails.
            let decoders = made(&mut promoter.decoders, promoter.rt);
            let decoders = decoders.ok_or(LoadError::MediumFailed)?;
            promoter.rt.load_page(w, decoders, &mut promoter.encoded, page)
        })
    }

    /// [`Tier::load`] of the page that a `Stored` word names, which is in `tier`.
    pub fn load_encoded(
        &mut self,
        tier: &Tier,
        w: PageWord,
        encoded: &mut Page,
    ) -> Result<(usize, u32), LoadError> {
        self.ask(w, |_| tier.load(Handle(w.payload()), encoded))
    }

    /// Reads what a word names, unless nobody waits for it and its medium does not answer.
    fn ask<T>(
        &mut self,
        w: PageWord,
        read: impl FnOnce(&mut Promoter) -> Result<T, LoadError>,
    ) -> Result<T, LoadError> {
        let (tier, window) = (w.tier(), self.rt.window.load(Ordering::Relaxed));
        if self.is_unasked && self.silence.holds(tier, window) {
            return Err(LoadError::MediumFailed);
        }
        let read = read(self);
        self.silence.note(tier, !matches!(read, Err(LoadError::MediumFailed)), window);
        read
    }

    /// [`Tier::compare_page`], with `other` for what is decoded.
    pub fn compare(
        &mut self,
        tier: &Tier,
        handle: Handle,
        page: &Page,
        other: &mut Page,
    ) -> Option<usize> {
        let decoders = made(&mut self.decoders, self.rt)?;
        tier.compare_page(decoders, handle, &mut self.encoded, page, other)
    }

    /// Decodes the page a word names. `false` if the word changed meanwhile, or if its medium does
    /// not answer and nobody waits for the page: then it stays there.
    fn fetch(&mut self, region: &Region, i: usize, w: PageWord, page: &mut Page) -> bool {
        if w.state() == PageState::Same {
            for word in page.as_chunks_mut::<4>().0 {
                *word = w.payload().to_le_bytes();
            }
            return true;
        }
        let loaded = self.load(w, page);
        if region.word(i) != w {
            return false;
        }
        match loaded {
            Ok(()) => true,
            Err(LoadError::MediumFailed) if self.is_unasked => false,
            Err(why) => crate::pager::unreadable(region.address(i), why),
        }
    }
}

/// The decoders, made if they are not there yet. `None` if there is no memory.
fn made<'a>(decoders: &'a mut Option<DecoderSet>, rt: &Runtime) -> Option<&'a mut DecoderSet> {
    if decoders.is_none() {
        *decoders = rt.stores.decoders().ok();
    }
    decoders.as_mut()
}
