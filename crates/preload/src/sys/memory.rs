//! The runtime's own memory: one reservation, made at start, that is never tiered.
//!
//! Everything the runtime allocates comes from here - Rust's heap in this library, thread stacks,
//! staging and sample slots, the pools - so that "is this ours?" is one range comparison, and the
//! application's `malloc` is never called. The reservation is `MAP_NORESERVE`: only touched pages
//! cost memory. It is kept out of forked children (they have no runtime threads) and of core dumps.

use super::sync::OnlyThread;
use super::{heap, stack};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use terrace_core::state::{PAGE_BYTES, REGION_BYTES};
use terrace_core::tier::MAX_TIERS;
use terrace_store::{Medium, MediumError};

/// Heap for tables and buffers. Region tables take 4 KiB for each 2 MiB managed, so this is
/// enough for several TiB of application.
const HEAP_BYTES: u64 = 16 << 30;
/// Room for thread stacks, staging and sample slots.
const SLOTS_BYTES: u64 = 4 << 30;

static BASE: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicU64 = AtomicU64::new(0);
/// A page that the kernel empties in every process that has a copy of this one's memory.
static WITNESS: AtomicU64 = AtomicU64::new(0);
static HEAP_USED: AtomicU64 = AtomicU64::new(0);

/// Every mapping of the runtime: heap, slots, witness, sentinel, stacks, an arena for each tier.
const RANGES_MAX: usize = 4 + MAX_TIERS + super::thread::THREADS_MAX;
static RANGES: [(AtomicU64, AtomicU64); RANGES_MAX] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; RANGES_MAX];
static RANGES_USED: AtomicUsize = AtomicUsize::new(0);

/// What a fork does with a mapping of ours.
#[derive(Clone, Copy, PartialEq)]
enum InChild {
    /// Not there: a child has no runtime, and page tables it does not get cost no time.
    Absent,
    /// There: libc's fork looks at it in the child.
    Copied,
}

fn map(len: u64, in_child: InChild) -> Option<u64> {
    // SAFETY: a fresh private anonymous mapping; nothing else is affected.
    let p = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return None;
    }
    let dont_fork = (in_child == InChild::Absent).then_some(libc::MADV_DONTFORK);
    for advice in [libc::MADV_DONTDUMP, libc::MADV_NOHUGEPAGE].into_iter().chain(dont_fork) {
        // SAFETY: advice on the mapping just made. Failing advice is harmless here: DONTFORK
        // is only an economy, because a child never follows pointers into this range.
        unsafe { libc::madvise(p, len as usize, advice) };
    }
    own(p as u64, len).then_some(p as u64)
}

/// Notes a mapping of ours; `false` if there are too many.
pub(super) fn own(start: u64, len: u64) -> bool {
    let Some(place) = RANGES.get(RANGES_USED.fetch_add(1, Ordering::Relaxed)) else { return false };
    place.1.store(start + len, Ordering::Relaxed);
    place.0.store(start, Ordering::Release);
    true
}

/// What is said when memory cannot be had.
pub const NO_ROOM: &str =
    "no room for the runtime's reservations (vm.overcommit_memory=2 or RLIMIT_AS)";

/// Maps the heap, the range that [`carve`] takes from and the page that tells a child from its
/// parent. Called once, before anything else of the runtime and before anything is allocated. The
/// error is a line for a person; then nothing is reserved, and nothing must be allocated.
pub fn reserve() -> Result<(), &'static str> {
    // What is reserved counts as used, so a limit that lets us in would leave the program short.
    if [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(is_limited) {
        return Err("its address space is limited (RLIMIT_AS or RLIMIT_DATA, see `ulimit -v` and \
                    `ulimit -d`), and the runtime reserves more of it than it uses");
    }
    let witness = map_witness().ok_or(NO_ROOM)?;
    let heap = map(HEAP_BYTES, InChild::Absent).ok_or(NO_ROOM)?;
    let Some(base) = map(SLOTS_BYTES + REGION_BYTES, InChild::Absent) else {
        // SAFETY: mapped just now, and nothing refers to it.
        unsafe { libc::munmap(heap as *mut libc::c_void, HEAP_BYTES as usize) };
        return Err(NO_ROOM);
    };
    WITNESS.store(witness, Ordering::Release);
    HEAP_BASE.store(heap as usize, Ordering::Release);
    NEXT.store(base.next_multiple_of(REGION_BYTES), Ordering::Relaxed);
    BASE.store(base, Ordering::Release);
    heap::prepare();
    stack::prepare();
    Ok(())
}

/// A page that reads as 1 here and as 0 in every child.
fn map_witness() -> Option<u64> {
    let witness = map_copied(PAGE_BYTES as u64)?;
    let page = witness as *mut libc::c_void;
    // SAFETY: our own page, made just now. It is written once, before its address is published.
    let is_marked = unsafe {
        page.cast::<u8>().write(1);
        libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0
    };
    is_marked.then_some(witness)
}

/// Whether the program may have only so much of a resource that address space counts as.
fn is_limited(resource: libc::__rlimit_resource_t) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    let known = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
    known && limit.rlim_cur != libc::RLIM_INFINITY
}

/// In a forked child: what was reserved is its parent's, and not there.
pub fn forget(only: &OnlyThread) {
    for word in [&BASE, &NEXT, &WITNESS, &HEAP_USED] {
        word.store(0, Ordering::Relaxed);
    }
    for (start, end) in &RANGES {
        start.store(0, Ordering::Relaxed);
        end.store(0, Ordering::Relaxed);
    }
    RANGES_USED.store(0, Ordering::Relaxed);
    HEAP_BASE.store(0, Ordering::Relaxed);
    heap::forget(only);
    stack::forget(only);
}

/// Whether the runtime has taken address space in this process.
pub fn is_reserved() -> bool {
    BASE.load(Ordering::Acquire) != 0
}

/// Whether this is the address space that the runtime was started in, and not a child's copy of it,
/// however that child was made. A process that shares the memory counts as the same.
pub fn is_original() -> bool {
    let page = WITNESS.load(Ordering::Acquire);
    page == 0 || read_byte_of_copied(page) == 1
}

/// Whether any byte of `[start, end)` is the runtime's.
pub fn is_own(start: u64, end: u64) -> bool {
    RANGES.iter().any(|(a, b)| {
        let (a, b) = (a.load(Ordering::Acquire), b.load(Ordering::Relaxed));
        start < b && a < end
    })
}

/// Whether all of `[start, end)` lies in the range that [`carve`] takes from.
fn is_carved(start: u64, end: u64) -> bool {
    let base = BASE.load(Ordering::Acquire);
    base != 0 && start >= base && end <= base + SLOTS_BYTES + REGION_BYTES && start <= end
}

/// Bytes the runtime's heap has in use or keeps for reuse.
pub fn heap_bytes() -> u64 {
    HEAP_USED.load(Ordering::Relaxed)
}

/// Gives back what is free at the end of the heap: codecs were tried, a large plan was read.
/// For threads of ours, in which nothing forbids `madvise`.
pub fn give_back_heap() {
    heap::give_back();
}

/// Carves `len` bytes, aligned to a region, off the reservation. Never given back: slots, stacks
/// and arenas live as long as the process.
pub fn carve(len: u64) -> Option<u64> {
    let len = len.next_multiple_of(REGION_BYTES);
    let end = BASE.load(Ordering::Acquire) + SLOTS_BYTES;
    NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| {
        (at.checked_add(len)? <= end).then_some(at + len)
    })
    .ok()
}

/// Memory that a forked child has too, for good: thread stacks, because glibc's fork walks them in
/// the child (it keeps the threads' control blocks there), and the sentinel of `forks.rs`.
pub fn map_copied(len: u64) -> Option<u64> {
    map(len, InChild::Copied)
}

/// Reads the first byte of memory made by [`map_copied`].
pub fn read_byte_of_copied(address: u64) -> u8 {
    // SAFETY: such a mapping is readable for good, in forked children too; volatile because the
    // kernel fills the page in when it is touched.
    unsafe { std::ptr::read_volatile(address as *const u8) }
}

/// Reads a byte of the program's, which brings its page home, on a thread that may touch it.
pub fn touch_of_program(address: u64) {
    // SAFETY: memory of the caller's caller, which it has handed over for this; of the byte nothing
    // is made.
    unsafe { std::ptr::read_volatile(address as *const u8) };
}

/// Carves `len` bytes that nobody, the kernel included, can read.
pub fn carve_unreadable(len: u64) -> Option<u64> {
    let start = carve(len)?;
    // SAFETY: the range was carved just now, so nothing refers to it.
    let r = unsafe { libc::mprotect(start as *mut libc::c_void, len as usize, libc::PROT_NONE) };
    (r == 0).then_some(start)
}

/// Gives the pages of a carved range back to the system; they read as zeros afterwards.
pub fn release(start: u64, len: u64) {
    assert!(is_carved(start, start + len), "release outside of the runtime's own memory");
    // SAFETY: the range is ours (checked) and the caller owns it, so no live reference reads it.
    unsafe { libc::madvise(start as *mut libc::c_void, len as usize, libc::MADV_DONTNEED) };
}

/// Copies one page out of a carved range (a staging or sample slot).
pub fn read_page(address: u64, out: &mut [u8; PAGE_BYTES]) {
    assert!(is_carved(address, address + PAGE_BYTES as u64), "read outside of own memory");
    // SAFETY: the address is in our reservation (checked), which is mapped readable for good. The
    // page's state word says that nobody moves it while we read (`state.rs`, Encoding); were it
    // moved all the same, a hole reads as zeros and the final compare-and-swap rejects the result.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), PAGE_BYTES) };
}

/// Has the kernel ready the application's pages in `[start, end)` for writing, as a write would,
/// and write nothing. Pages that no other process maps are not copied. Where the application may
/// not write itself, or maps nothing any more, nothing happens. May wait for the pager.
pub fn ready_for_writing(start: u64, end: u64) {
    // SAFETY: advice that changes no byte of any mapping, whatever is mapped there by now.
    unsafe {
        let (p, len) = (start as *mut libc::c_void, (end - start) as usize);
        libc::madvise(p, len, libc::MADV_POPULATE_WRITE);
    }
}

/// Has the kernel divide the huge pages of the application in which `[start, end)` lies, less than
/// one of them. A hint: nothing else changes, whatever is mapped there by now.
pub fn split_huge(start: u64, end: u64) {
    let len = (end - start).min(REGION_BYTES - PAGE_BYTES as u64);
    // SAFETY: advice that changes no byte of any mapping.
    unsafe { libc::madvise(start as *mut libc::c_void, len as usize, libc::MADV_COLD) };
}

/// Writes one byte of a carved page: how a mover rings the pager's doorbell.
pub fn touch_for_write(address: u64) {
    assert!(is_carved(address, address + 1), "touch outside of own memory");
    // SAFETY: our own page; the value is never read.
    unsafe { std::ptr::write_volatile(address as *mut u8, 1) };
}

/// A pool's medium in the machine's own memory: a carved arena of fixed capacity.
#[derive(Debug)]
pub struct Arena {
    base: u64,
    len: u64,
    /// End of what was ever written, and of what was populated ahead of that.
    written: AtomicU64,
    populated: AtomicU64,
}

/// Pools grow at their end mostly. So much is populated there in one call, by a mover that holds no
/// lock: a page fault of its own for each page costs more, and comes under the pool's lock, where
/// a fault of the application may have to wait for it.
const POPULATE_BYTES: u64 = 64 << 10;

impl Arena {
    /// An arena of at most `len` bytes of address space.
    pub fn new(len: u64) -> Option<Arena> {
        map(len, InChild::Absent).map(|base| Arena {
            base,
            len,
            written: AtomicU64::new(0),
            populated: AtomicU64::new(0),
        })
    }

    /// An arena over a shared mapping of a device, made by [`super::media`] for good.
    pub(super) fn over(base: u64, len: u64) -> Arena {
        let (written, populated) = (AtomicU64::new(0), AtomicU64::new(len));
        Arena { base, len, written, populated }
    }

    /// Has the arena's pages come from one NUMA node and no other. None is touched yet.
    pub fn bind(&self, node: u32) -> std::io::Result<()> {
        let mut mask = [0u64; 16];
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or(std::io::ErrorKind::InvalidInput)? = 1 << (node % 64);
        // The kernel takes the bits below `maxnode - 1`.
        let maxnode = mask.len() as u64 * 64 + 1;
        // SAFETY: a policy for our own mapping; the kernel reads the mask, which is long enough.
        let r = unsafe {
            let policy = libc::MPOL_BIND;
            libc::syscall(libc::SYS_mbind, self.base, self.len, policy, mask.as_ptr(), maxnode, 0)
        };
        if r == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }

    fn check(&self, offset: u64, len: usize) -> Result<*mut u8, MediumError> {
        let end = offset.checked_add(len as u64).ok_or(MediumError::OutOfRange)?;
        if end > self.len {
            return Err(MediumError::OutOfRange);
        }
        Ok((self.base + offset) as *mut u8)
    }
}

impl Medium for Arena {
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let from = self.check(offset, buf.len())?;
        // SAFETY: in bounds (checked) of a mapping that lives for ever; the pool's lock keeps
        // writers of this extent away, and no reference into the arena exists.
        unsafe { std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let to = self.check(offset, bytes.len())?;
        self.written.fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn release(&self, offset: u64, len: u64) {
        if let Ok(p) = self.check(offset, len as usize) {
            // SAFETY: in bounds of our own mapping; the pool keeps these pages out of use.
            unsafe { libc::madvise(p.cast(), len as usize, libc::MADV_DONTNEED) };
        }
    }

    fn capacity(&self) -> u64 {
        self.len
    }

    /// Populates the next pages when half of the last ones are used.
    fn work_off(&self) {
        let (written, populated) =
            (self.written.load(Ordering::Relaxed), self.populated.load(Ordering::Relaxed));
        if written + POPULATE_BYTES / 2 < populated {
            return;
        }
        let start = written.max(populated).next_multiple_of(PAGE_BYTES as u64);
        let end = (start + POPULATE_BYTES).min(self.len);
        // Who is second finds it done; a populated page that is populated again stays as it is.
        self.populated.store(end.max(populated), Ordering::Relaxed);
        if start < end {
            // SAFETY: advice on our own mapping, which does not change what it holds. Where it
            // fails (an old kernel, no memory) pages come by faults as they are written.
            unsafe {
                let p = (self.base + start) as *mut libc::c_void;
                libc::madvise(p, (end - start) as usize, libc::MADV_POPULATE_WRITE);
            }
        }
    }
}

// ---- where Rust's heap in this library comes from (heap.rs) --------------------------------

static HEAP_BASE: AtomicUsize = AtomicUsize::new(0);

/// Hands dlmalloc consecutive pieces of the heap range.
pub(super) struct HeapSource;

// SAFETY: `alloc` returns disjoint, zeroed, page-aligned pieces of a mapping that is never
// unmapped. `free_part` takes back the end of what was handed out last, and only if the kernel has
// emptied it, so that the next `alloc` finds it as new. The other methods refuse.
unsafe impl dlmalloc::Allocator for HeapSource {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let size = size.next_multiple_of(64 << 10);
        let used = HEAP_USED.load(Ordering::Relaxed) as usize;
        let base = match HEAP_BASE.load(Ordering::Acquire) {
            0 => match map(HEAP_BYTES, InChild::Absent) {
                Some(b) => {
                    HEAP_BASE.store(b as usize, Ordering::Release);
                    b as usize
                }
                None => return (std::ptr::null_mut(), 0, 0),
            },
            b => b,
        };
        if used + size > HEAP_BYTES as usize {
            return (std::ptr::null_mut(), 0, 0);
        }
        HEAP_USED.store((used + size) as u64, Ordering::Relaxed);
        ((base + used) as *mut u8, size, 0)
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }
    fn free_part(&self, piece: *mut u8, len: usize, kept: usize) -> bool {
        let base = HEAP_BASE.load(Ordering::Acquire);
        let end = base + HEAP_USED.load(Ordering::Relaxed) as usize;
        if piece as usize + len != end {
            return false;
        }
        // SAFETY: the end of our own heap, which the allocator has just said nobody uses.
        let is_empty =
            unsafe { libc::madvise(piece.add(kept).cast(), len - kept, libc::MADV_DONTNEED) == 0 };
        if is_empty {
            HEAP_USED.store((piece as usize + kept - base) as u64, Ordering::Relaxed);
        }
        is_empty
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        heap::may_give_back()
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        PAGE_BYTES
    }
}
