//! What the planner process and the runtime say to each other, byte by byte.
//!
//! A message is a little-endian `u32` length of what follows, a type byte and the fields in the
//! order of the structs below. Both sides are of one build (the planner refuses another
//! [`VERSION`]), so there is no field negotiation. Decoding is total: any bytes give a message or
//! [`Malformed`], never a panic and never an allocation of more than a few times the message,
//! because a broken peer must not be able to hurt a host program. (Counts are held against the
//! bytes that are there before anything is allocated, and a decoded item is at most four times as
//! long as its bytes.)

use crate::looks::Watching;
use crate::shrink::Shrunk;
use crate::tier::{Codec, MediumKind, Place, Pool, TierId, BLOCK_KIB, MAX_TIERS, PATH_BYTES_MAX};

mod regions;

/// Version of this format. Changes with every change to it.
pub const VERSION: u32 = 13;
/// Longest note in a [`Configure`], bytes.
pub const NOTE_BYTES_MAX: usize = 64 << 10;
/// Largest message either side accepts: 100,000 regions of report (40 bytes each) with room.
pub const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Longest latency that an emulated medium can have, nanoseconds: the pager waits for it, and a
/// page fault of a second helps nobody.
pub const LATENCY_NS_MAX: u64 = 1_000_000_000;

/// The bytes are not a message of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed message")
    }
}

impl std::error::Error for Malformed {}

/// One compressed tier as the runtime builds it ([`crate::tier::TierSpec`] without names and
/// prices, which are the planner's business).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TierConfig {
    /// The codec.
    pub codec: Codec,
    /// Its level.
    pub level: i32,
    /// The pool manager.
    pub pool: Pool,
    /// What the medium is made of.
    pub medium: MediumKind,
    /// Added access latency of an emulated medium, nanoseconds, at most [`LATENCY_NS_MAX`].
    pub latency_ns: u64,
    /// Bandwidth of an emulated medium, MiB/s, 0 for unlimited. (Whatever it is, a page takes 4 ms
    /// at most.)
    pub bandwidth_mib_s: u64,
    /// Where the medium is.
    pub place: Place,
    /// KiB that are compressed together, 0 for single pages ([`crate::tier::TierSpec::block_kib`]).
    pub block_kib: u8,
    /// Longest encoding of a page that it takes, bytes ([`crate::tier::TierSpec::cutoff_bytes`]).
    pub cutoff_bytes: u32,
}

/// Planner to runtime.
#[derive(Clone, PartialEq, Debug)]
pub enum ToRuntime {
    /// First message: what to build. Tiers are `TierId(1)` and up, in order. To a runtime that has
    /// been built, the configuration in force again ([`Hello::in_force`]), the note aside.
    Configure(Configure),
    /// Close the current window, report it and open another one.
    Window {
        /// Number of the window that opens.
        number: u32,
        /// Memory that the program may have beyond what it has before it, or the machine, is at a
        /// limit, bytes. 0 where that is not known.
        spare_bytes: u64,
        /// A page that comes back from a tier within less than so many windows is in use, and stays
        /// longer the more often that happens ([`crate::plan::Terms::soon_windows`]).
        soon_windows: u8,
    },
    /// Where each named region should be. Regions not named stay as they are.
    Plan(Vec<PlanEntry>),
}

/// Limits and tiers for the runtime.
#[derive(Clone, PartialEq, Debug)]
pub struct Configure {
    /// Stored size above which a page counts as incompressible, bytes (2,990 in the paper), at the
    /// price of DRAM: what the tiers' own follow from.
    pub cutoff_bytes: u32,
    /// Pages sampled per region and window by the tracker.
    pub samples_per_region: u8,
    /// Windows a page that came back stays home.
    pub cooling_windows: u8,
    /// Mover threads, 1 to 8.
    pub move_threads: u8,
    /// Most that all movers together take out of the application, MiB per second, 0 for no limit.
    pub move_mib_s: u32,
    /// The compressed tiers.
    pub tiers: Vec<TierConfig>,
    /// What movers draw from to pause, to give up and to refuse pages at random; 0: they do not.
    pub torture_seed: u64,
    /// What the planner wants to be told when it has to start anew: the runtime keeps it unread
    /// and gives it back in [`Hello`]. At most [`NOTE_BYTES_MAX`] bytes.
    pub note: String,
    /// What the policy wants to know of pages at home.
    pub watching: Watching,
}

/// One line of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanEntry {
    /// Address of the region, a multiple of 2 MiB.
    pub region: u64,
    /// Where its pages should be.
    pub tier: TierId,
}

/// Runtime to planner.
#[derive(Clone, PartialEq, Debug)]
pub enum FromRuntime {
    /// First message.
    Hello(Hello),
    /// A closed window.
    Report(Box<Report>),
    /// This process cannot be tiered, and why (a line for a person).
    Refused(String),
}

/// Who is speaking.
#[derive(Clone, PartialEq, Debug)]
pub struct Hello {
    /// [`VERSION`] of the runtime.
    pub version: u32,
    /// Process id, in the runtime's own PID namespace.
    pub pid: u32,
    /// Feature bits that userfaultfd granted.
    pub uffd_features: u64,
    /// Number of the open window: what the planner's first `Window` closes.
    pub window: u32,
    /// What the runtime was built to by an earlier planner, whose successor is spoken to now.
    pub in_force: Option<Configure>,
}

/// One region in a report.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct RegionReport {
    /// Address, a multiple of 2 MiB.
    pub region: u64,
    /// The tier its last plan entry named.
    pub tier: u8,
    /// Pages in the application's mapping now.
    pub resident: u16,
    /// Pages in compressed tiers now.
    pub stored: u16,
    /// Of a region in a tier: resident pages that stay in the next window, because they came back
    /// lately, or often ([`crate::state::PageWord::rest`]).
    pub resting: u16,
    /// Pages sampled in the window and how many of those were come back for.
    pub samples: u8,
    /// See `samples`.
    pub hits: u8,
    /// Pages that were resident when the window opened.
    pub resident_at_open: u16,
    /// Faults from compressed tiers in the window.
    pub faults: u32,
    /// What its pages shrank to in the tiers that have seen it.
    pub shrunk: Shrunk,
}

/// One compressed tier in a report. Counters run since the start.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TierReport {
    /// Pages held.
    pub pages: u64,
    /// Of those, pages held as a repeated word, which take no pool space.
    pub same_pages: u64,
    /// Compressed bytes held.
    pub stored_bytes: u64,
    /// Bytes of medium the pool takes, fragmentation included, and its tables where the medium is
    /// DRAM or stands for it.
    pub pool_bytes: u64,
    /// Bytes of DRAM that the tier takes although its medium is elsewhere: tables, open blocks.
    pub dram_bytes: u64,
    /// Faults served.
    pub faults: u64,
    /// Fault service time, nanoseconds: median, 99th percentile and mean.
    pub fault_ns_p50: u64,
    /// See `fault_ns_p50`.
    pub fault_ns_p99: u64,
    /// See `fault_ns_p50`.
    pub fault_ns_mean: u64,
    /// Pages refused, by reason, in the order of [`REFUSALS`].
    pub refused: [u64; REFUSALS.len()],
    /// Stored bytes / original bytes over a sample of the application's own pages that are at
    /// home, in thousandths, with the pool's overhead; 0 if nothing was sampled.
    pub estimated_ratio_milli: u32,
    /// Time to decode one of those sampled pages, nanoseconds.
    pub estimated_decode_ns: u32,
    /// Time to encode one of them, nanoseconds; of those that were refused, too.
    pub estimated_encode_ns: u32,
    /// Encoded bytes / original bytes of those that the tier would take, in thousandths, without
    /// the pool; 0 if it would take none.
    pub estimated_encoded_milli: u32,
    /// Pool bytes / original bytes of those that the tier would take, in thousandths, in a pool
    /// that pairs pages; 0 in one where that does not depend on how unlike they are.
    pub estimated_packed_milli: u32,
    /// Time of all its faults together, nanoseconds.
    pub fault_ns_total: u64,
}

/// Why a page was not taken, in the order of the wire.
pub const REFUSALS: [&str; 6] = [
    "incompressible",
    "pool_full",
    "pinned_or_shared",
    "mapping_changed",
    "medium_failed",
    "not_stopped",
];

/// A closed window.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// The window that was closed.
    pub window: u32,
    /// All regions the runtime follows.
    pub regions: Vec<RegionReport>,
    /// The compressed tiers in order.
    pub tiers: Vec<TierReport>,
    /// Resident set of the process, bytes, pools and runtime included.
    pub rss_bytes: u64,
    /// Memory of the runtime itself, pools aside, bytes.
    pub runtime_bytes: u64,
    /// CPU time of the runtime's threads since the start, nanoseconds.
    pub runtime_cpu_ns: u64,
    /// Time application threads waited for faults since the start, nanoseconds (service time and
    /// what waking takes).
    pub stalled_ns: u64,
    /// The part of it that is waking, nanoseconds.
    pub waking_ns: u64,
    /// The part of it that was for fresh memory, nanoseconds.
    pub fresh_ns: u64,
    /// Faults on pages that no tier held (fresh memory in a registered region).
    pub zero_faults: u64,
    /// Faults on pages the tracker had taken as samples.
    pub sample_faults: u64,
    /// Faults on pages in staging, moved back without decoding.
    pub staged_faults: u64,
    /// Pages that came home along with a fault of the scan they belong to.
    pub ahead_pages: u64,
    /// Pages brought home because a plan said so.
    pub promoted_pages: u64,
    /// Pages moved from tier to tier.
    pub migrated_pages: u64,
    /// Plan entries not finished before the next window.
    pub abandoned_moves: u64,
    /// What waking takes for one fault now, nanoseconds.
    pub fault_overhead_ns: u64,
    /// Pages that went from DRAM into a tier.
    pub demoted_pages: u64,
    /// Pages that were on their way and stayed where they were because a mover gave up.
    pub given_up_pages: u64,
    /// Of those that went from DRAM into a tier, pages that were not encoded again: what they had
    /// been encoded to before was kept, and they were still the same.
    pub reused_pages: u64,
    /// Pages at home of which a tier's pool keeps the encoding, now.
    pub copied_pages: u64,
}

impl Report {
    /// Faults from tiers that threads waited for since the start.
    pub fn served_faults(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.faults).sum()
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Writer {
        Writer(vec![0, 0, 0, 0, kind])
    }
    fn u8(&mut self, v: u8) -> &mut Self {
        self.0.push(v);
        self
    }
    fn u16(&mut self, v: u16) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    /// At most [`PATH_BYTES_MAX`] bytes; a longer text is cut, which its reader will not accept.
    fn text(&mut self, v: &str) -> &mut Self {
        let bytes = &v.as_bytes()[..v.len().min(PATH_BYTES_MAX + 1)];
        self.u16(bytes.len() as u16).0.extend_from_slice(bytes);
        self
    }
    fn finish(mut self) -> Vec<u8> {
        let len = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }
    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }
    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }
    /// A path: absolute, without NUL, or empty.
    fn path(&mut self) -> Result<String, Malformed> {
        let len = usize::from(self.u16()?);
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        let text = core::str::from_utf8(head).map_err(|_| Malformed)?;
        let is_path = text.is_empty() || text.starts_with('/') && !text.contains('\0');
        (is_path && len <= PATH_BYTES_MAX).then(|| text.to_owned()).ok_or(Malformed)
    }
    /// A text of at most [`NOTE_BYTES_MAX`] bytes.
    fn note(&mut self) -> Result<String, Malformed> {
        let len = self.count(1)?;
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        let text = core::str::from_utf8(head).map_err(|_| Malformed)?;
        (len <= NOTE_BYTES_MAX).then(|| text.to_owned()).ok_or(Malformed)
    }
    /// A count of items of at least `item_bytes` each: never more than the message can hold.
    fn count(&mut self, item_bytes: usize) -> Result<usize, Malformed> {
        let n = self.u32()? as usize;
        if n > self.0.len() / item_bytes {
            return Err(Malformed);
        }
        Ok(n)
    }
    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

const PLAN_ENTRY_BYTES: usize = 9;
/// Without the path.
const TIER_CONFIG_BYTES: usize = 43;
/// Without what is known of single tiers.
const REGION_REPORT_BYTES: usize = 25;
const TIER_REPORT_BYTES: usize = 9 * 8 + REFUSALS.len() * 8 + 12 + 16;

impl ToRuntime {
    /// The message as bytes, length first.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ToRuntime::Configure(c) => {
                let mut w = Writer::new(1);
                encode_configure(&mut w, c);
                w.finish()
            }
            ToRuntime::Window { number, spare_bytes, soon_windows } => {
                let mut w = Writer::new(2);
                w.u32(*number).u64(*spare_bytes).u8(*soon_windows);
                w.finish()
            }
            ToRuntime::Plan(entries) => {
                let mut w = Writer::new(3);
                w.u32(entries.len() as u32);
                for e in entries {
                    w.u64(e.region).u8(e.tier.0);
                }
                w.finish()
            }
        }
    }

    /// Reads a message from `body`, the bytes after the length. Checks every range the runtime
    /// relies on: regions are aligned user addresses, tiers exist, limits are sane.
    pub fn decode(body: &[u8]) -> Result<ToRuntime, Malformed> {
        let mut r = Reader(body);
        let message = match r.u8()? {
            1 => ToRuntime::Configure(decode_configure(&mut r)?),
            2 => {
                ToRuntime::Window { number: r.u32()?, spare_bytes: r.u64()?, soon_windows: r.u8()? }
            }
            3 => {
                let n = r.count(PLAN_ENTRY_BYTES)?;
                let mut entries = Vec::with_capacity(n);
                for _ in 0..n {
                    let (region, tier) = (r.u64()?, TierId(r.u8()?));
                    let aligned = region % crate::state::REGION_BYTES == 0;
                    if !aligned || region >= 1 << 47 || tier.index() >= MAX_TIERS {
                        return Err(Malformed);
                    }
                    entries.push(PlanEntry { region, tier });
                }
                ToRuntime::Plan(entries)
            }
            _ => return Err(Malformed),
        };
        r.end()?;
        Ok(message)
    }
}

impl FromRuntime {
    /// The message as bytes, length first.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FromRuntime::Hello(h) => {
                let mut w = Writer::new(65);
                w.u32(h.version).u32(h.pid).u64(h.uffd_features).u32(h.window);
                w.u8(u8::from(h.in_force.is_some()));
                if let Some(c) = &h.in_force {
                    encode_configure(&mut w, c);
                }
                w.finish()
            }
            FromRuntime::Report(report) => encode_report(report),
            FromRuntime::Refused(why) => {
                let mut w = Writer::new(67);
                w.0.extend_from_slice(why.as_bytes());
                w.finish()
            }
        }
    }

    /// Reads a message from `body`, the bytes after the length.
    pub fn decode(body: &[u8]) -> Result<FromRuntime, Malformed> {
        let mut r = Reader(body);
        let message = match r.u8()? {
            65 => {
                let version = r.u32()?;
                let (pid, uffd_features) = (r.u32()?, r.u64()?);
                if version != VERSION {
                    // What follows is another version's business; the planner refuses it by this.
                    return Ok(FromRuntime::Hello(Hello::of_version(version, pid, uffd_features)));
                }
                let mut hello = Hello::of_version(version, pid, uffd_features);
                hello.window = r.u32()?;
                hello.in_force = match r.u8()? {
                    0 => None,
                    1 => Some(decode_configure(&mut r)?),
                    _ => return Err(Malformed),
                };
                FromRuntime::Hello(hello)
            }
            66 => FromRuntime::Report(Box::new(decode_report(&mut r)?)),
            67 => {
                let text = String::from_utf8_lossy(r.0).into_owned();
                r.0 = &[];
                FromRuntime::Refused(text)
            }
            _ => return Err(Malformed),
        };
        r.end()?;
        Ok(message)
    }
}

impl Hello {
    /// The fields that every version has.
    fn of_version(version: u32, pid: u32, uffd_features: u64) -> Hello {
        Hello { version, pid, uffd_features, window: 0, in_force: None }
    }
}

fn encode_configure(w: &mut Writer, c: &Configure) {
    w.u32(c.cutoff_bytes).u8(c.samples_per_region).u8(c.cooling_windows);
    w.u8(c.move_threads).u32(c.move_mib_s).u32(c.tiers.len() as u32);
    for t in &c.tiers {
        w.u8(t.codec as u8).u32(t.level as u32).u8(t.pool as u8).u8(t.medium as u8);
        w.u64(t.latency_ns).u64(t.bandwidth_mib_s);
        w.u32(t.place.node).u64(t.place.capacity_bytes);
        w.u8(u8::from(t.place.is_enciphered)).text(&t.place.path);
        w.u8(t.block_kib).u32(t.cutoff_bytes);
    }
    w.u64(c.torture_seed);
    w.u32(c.note.len() as u32).0.extend_from_slice(c.note.as_bytes());
    w.u8(c.watching.to_wire());
}

fn decode_configure(r: &mut Reader<'_>) -> Result<Configure, Malformed> {
    let (cutoff_bytes, samples_per_region) = (r.u32()?, r.u8()?);
    let (cooling_windows, move_threads, move_mib_s) = (r.u8()?, r.u8()?, r.u32()?);
    let n = r.count(TIER_CONFIG_BYTES)?;
    let is_cutoff = |bytes: u32| (64..=4096).contains(&bytes);
    let sane = is_cutoff(cutoff_bytes)
        && samples_per_region <= 64
        && cooling_windows <= 64
        && (1..=8).contains(&move_threads)
        && n < MAX_TIERS;
    if !sane {
        return Err(Malformed);
    }
    let mut tiers = Vec::with_capacity(n);
    for _ in 0..n {
        let codec = Codec::from_wire(r.u8()?).ok_or(Malformed)?;
        let level = r.u32()? as i32;
        let (lo, hi) = codec.levels();
        if level < lo || level > hi {
            return Err(Malformed);
        }
        tiers.push(TierConfig {
            codec,
            level,
            pool: Pool::from_wire(r.u8()?).ok_or(Malformed)?,
            medium: MediumKind::from_wire(r.u8()?).ok_or(Malformed)?,
            latency_ns: Some(r.u64()?).filter(|&ns| ns <= LATENCY_NS_MAX).ok_or(Malformed)?,
            bandwidth_mib_s: r.u64()?,
            place: decode_place(r)?,
            block_kib: decode_block_kib(r, codec)?,
            cutoff_bytes: Some(r.u32()?).filter(|&n| is_cutoff(n)).ok_or(Malformed)?,
        });
    }
    Ok(Configure {
        cutoff_bytes,
        samples_per_region,
        cooling_windows,
        move_threads,
        move_mib_s,
        tiers,
        torture_seed: r.u64()?,
        note: r.note()?,
        watching: Watching::from_wire(r.u8()?).ok_or(Malformed)?,
    })
}

/// [`FromRuntime::Refused`] as bytes, length first, without a heap. A line longer than 507 bytes
/// is cut, at the end of a character or not.
pub fn encode_refusal<'a>(why: &str, out: &'a mut [u8; 512]) -> &'a [u8] {
    let text = &why.as_bytes()[..why.len().min(out.len() - 5)];
    out[..4].copy_from_slice(&(text.len() as u32 + 1).to_le_bytes());
    out[4] = 67;
    out[5..5 + text.len()].copy_from_slice(text);
    &out[..5 + text.len()]
}

fn decode_block_kib(r: &mut Reader<'_>, codec: Codec) -> Result<u8, Malformed> {
    match r.u8()? {
        0 => Ok(0),
        n if BLOCK_KIB.contains(&n) && codec == Codec::Zstd => Ok(n),
        _ => Err(Malformed),
    }
}

fn decode_place(r: &mut Reader<'_>) -> Result<Place, Malformed> {
    let (node, capacity_bytes) = (r.u32()?, r.u64()?);
    let is_enciphered = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Malformed),
    };
    Ok(Place { path: r.path()?, node, capacity_bytes, is_enciphered })
}

fn encode_report(report: &Report) -> Vec<u8> {
    let mut w = Writer::new(66);
    w.u32(report.window).u32(report.regions.len() as u32);
    report.regions.iter().for_each(|region| regions::encode(&mut w, region));
    w.u32(report.tiers.len() as u32);
    for t in &report.tiers {
        w.u64(t.pages).u64(t.same_pages).u64(t.stored_bytes).u64(t.pool_bytes).u64(t.dram_bytes);
        w.u64(t.faults);
        w.u64(t.fault_ns_p50).u64(t.fault_ns_p99).u64(t.fault_ns_mean);
        for n in t.refused {
            w.u64(n);
        }
        w.u32(t.estimated_ratio_milli).u32(t.estimated_decode_ns).u32(t.estimated_encode_ns);
        w.u32(t.estimated_encoded_milli).u32(t.estimated_packed_milli).u64(t.fault_ns_total);
    }
    for v in scalars(report) {
        w.u64(v);
    }
    w.finish()
}

fn decode_report(r: &mut Reader<'_>) -> Result<Report, Malformed> {
    let mut report = Report { window: r.u32()?, ..Report::default() };
    let regions = r.count(REGION_REPORT_BYTES)?;
    report.regions.reserve_exact(regions);
    for _ in 0..regions {
        report.regions.push(regions::decode(r)?);
    }
    let tiers = r.count(TIER_REPORT_BYTES)?;
    for _ in 0..tiers {
        let mut t = TierReport {
            pages: r.u64()?,
            same_pages: r.u64()?,
            stored_bytes: r.u64()?,
            pool_bytes: r.u64()?,
            dram_bytes: r.u64()?,
            faults: r.u64()?,
            fault_ns_p50: r.u64()?,
            fault_ns_p99: r.u64()?,
            fault_ns_mean: r.u64()?,
            ..TierReport::default()
        };
        for n in &mut t.refused {
            *n = r.u64()?;
        }
        t.estimated_ratio_milli = r.u32()?;
        t.estimated_decode_ns = r.u32()?;
        t.estimated_encode_ns = r.u32()?;
        t.estimated_encoded_milli = r.u32()?;
        t.estimated_packed_milli = r.u32()?;
        t.fault_ns_total = r.u64()?;
        report.tiers.push(t);
    }
    for field in scalars_mut(&mut report) {
        *field = r.u64()?;
    }
    Ok(report)
}

fn scalars(r: &Report) -> [u64; 18] {
    let mut copy = r.clone_scalars();
    scalars_mut(&mut copy).map(|v| *v)
}

fn scalars_mut(r: &mut Report) -> [&mut u64; 18] {
    [
        &mut r.rss_bytes,
        &mut r.runtime_bytes,
        &mut r.runtime_cpu_ns,
        &mut r.stalled_ns,
        &mut r.waking_ns,
        &mut r.fresh_ns,
        &mut r.zero_faults,
        &mut r.sample_faults,
        &mut r.staged_faults,
        &mut r.ahead_pages,
        &mut r.promoted_pages,
        &mut r.migrated_pages,
        &mut r.abandoned_moves,
        &mut r.fault_overhead_ns,
        &mut r.demoted_pages,
        &mut r.given_up_pages,
        &mut r.reused_pages,
        &mut r.copied_pages,
    ]
}

impl Report {
    /// The report without its lists.
    fn clone_scalars(&self) -> Report {
        Report { regions: Vec::new(), tiers: Vec::new(), ..*self }
    }
}

/// Takes one whole message off the front of `buffer`: its body and how many bytes to drop.
/// `Ok(None)` if more bytes are needed.
pub fn split_message(buffer: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*head) as usize;
    if len == 0 || len > MESSAGE_BYTES_MAX {
        return Err(Malformed);
    }
    Ok(rest.get(..len).map(|body| (body, len + 4)))
}

#[cfg(test)]
mod tests;
