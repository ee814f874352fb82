//! Pools: which bytes of an arena hold which object. Bookkeeping only; the bytes themselves are
//! the medium's, and no pool ever looks at them.
//!
//! A pool hands out a [`Handle`] for each object. The handle stays the same while compaction moves
//! the object, because it names a slot in a table ([`slots`]) and the slot names the place. Pages
//! come from an arena allocator ([`arena`]) that all pools share.
//!
//! Locking: none here; [`crate::tier::Tier`] holds one mutex around a pool. `locate` and `free`
//! run in the pager, so they take constant time and never allocate. `free` gives nothing back to
//! the medium either: pages that fall empty are only marked, and a mover hands them back in
//! batches through [`ObjectPool::take_idle`] (an `madvise` costs more than a whole fault).

pub mod arena;
mod class;
pub mod slots;
mod triple;
pub mod z3fold;
pub mod zbud;
pub mod zsmalloc;

#[cfg(test)]
mod fuzz;

use terrace_core::tier::Pool;

/// Names an object in one pool. Stable until the object is freed; then it may name another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u32);

/// A range of bytes of the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u32,
}

/// A live object as its slot describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Where its bytes are, with their exact length.
    pub extent: Extent,
    /// The word that was given with it, for the owner's use.
    pub check: u32,
}

/// What a pool holds and what that costs, all in bytes but the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Live objects.
    pub objects: u64,
    /// Sum of their lengths.
    pub object_bytes: u64,
    /// Pages held by objects, times 4096.
    pub pool_bytes: u64,
    /// Pages that fell empty and were not yet given back to the medium, times 4096.
    pub idle_bytes: u64,
    /// Tables of the pool itself.
    pub metadata_bytes: u64,
}

/// Moves an object's bytes from one extent to another (never overlapping); false if it could not,
/// and then the object stays where it was.
pub type MoveBytes<'a> = &'a mut dyn FnMut(Extent, Extent) -> bool;

/// A manager of objects of 1 to 4096 bytes.
pub trait ObjectPool: Send {
    /// Finds room for `len` bytes and remembers `check` with it. `None` if the pool is full or
    /// `len` is not from 1 to 4096.
    fn alloc(&mut self, len: usize, check: u32) -> Option<Handle>;

    /// Where an object is; `None` for a handle that names nothing.
    fn locate(&self, handle: Handle) -> Option<Object>;

    /// Gives an object up. Returns what it was; `None` for a handle that names nothing.
    fn free(&mut self, handle: Handle) -> Option<Object>;

    /// Moves at most `moves_max` objects together so that pages fall empty. Returns how many it
    /// moved; less than asked for means that nothing is left to gain (or a move failed).
    fn compact(&mut self, moves_max: usize, move_bytes: MoveBytes<'_>) -> usize;

    /// Takes a run of empty pages whose content the medium may drop. The pages stay out of use
    /// until [`ObjectPool::give_back`], so that they can be dropped without the pool's lock.
    fn take_idle(&mut self) -> Option<Extent>;

    /// Ends [`ObjectPool::take_idle`]: the pages can be used again.
    fn give_back(&mut self, extent: Extent);

    /// Counters; constant time.
    fn stats(&self) -> PoolStats;

    /// Compares everything that is counted with what is there.
    ///
    /// # Panics
    /// If something does not agree. For tests.
    fn validate(&self);
}

/// An empty pool over an arena of so many pages.
pub fn open(kind: Pool, arena_pages: u64) -> Box<dyn ObjectPool> {
    match kind {
        Pool::Zbud => Box::new(zbud::Zbud::new(arena_pages)),
        Pool::Zsmalloc => Box::new(zsmalloc::Zsmalloc::new(arena_pages)),
        Pool::Z3fold => Box::new(z3fold::Z3fold::new(arena_pages)),
    }
}
