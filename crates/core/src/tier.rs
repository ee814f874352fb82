//! What a tier is: *codec* x *pool* x *medium* (TierScape, section 4, Table 1), with its prices.
//!
//! These are descriptions only. `terrace-store` turns a [`TierSpec`] into something that holds
//! bytes; the planner sees a tier as a latency and a price ([`crate::cost`]).

use core::fmt;

use crate::state::PAGE_BYTES;

/// How many tiers one application can have, DRAM included. Bounds the tier field of a page's
/// state word (4 bits) and every per-tier array.
pub const MAX_TIERS: usize = 16;

/// A tier's place in the configured order. `TierId(0)` is always plain DRAM; the others follow
/// from low latency to low price, as TierScape section 5 orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TierId(pub u8);

impl TierId {
    /// Uncompressed memory, where every page starts.
    pub const DRAM: TierId = TierId(0);

    /// Position in per-tier arrays.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}", self.0)
    }
}

/// A page codec. The discriminant is the number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Codec {
    /// LZ4 block format: the fastest to decode.
    Lz4 = 0,
    /// LZO1X, the kernel's long-time zswap default and TierScape's `lzo`.
    Lzo = 1,
    /// Raw deflate (RFC 1951): the paper's densest codec.
    Deflate = 2,
    /// Zstandard, magicless frames without content size.
    Zstd = 3,
    /// LZ4's block format from a searching encoder: denser, slower to encode, decoded as `Lz4`.
    Lz4hc = 4,
    /// LZO1X with runs of zeros (version 1 of the bitstream), the kernel's zram default.
    LzoRle = 5,
    /// IBM's 842, in the format of the kernel's software implementation.
    C842 = 6,
    /// Zstandard behind a dictionary trained from the application's own pages.
    ZstdDict = 7,
    /// LZ4 behind such a dictionary.
    Lz4Dict = 8,
}

impl Codec {
    /// All codecs, in wire order.
    pub const ALL: [Codec; 9] = [
        Codec::Lz4,
        Codec::Lzo,
        Codec::Deflate,
        Codec::Zstd,
        Codec::Lz4hc,
        Codec::LzoRle,
        Codec::C842,
        Codec::ZstdDict,
        Codec::Lz4Dict,
    ];

    /// Name in configuration files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Codec::Lz4 => "lz4",
            Codec::Lzo => "lzo",
            Codec::Deflate => "deflate",
            Codec::Zstd => "zstd",
            Codec::Lz4hc => "lz4hc",
            Codec::LzoRle => "lzo-rle",
            Codec::C842 => "842",
            Codec::ZstdDict => "zstd-dict",
            Codec::Lz4Dict => "lz4-dict",
        }
    }

    /// The level used when the configuration names none.
    pub fn default_level(self) -> i32 {
        match self {
            Codec::Lz4
            | Codec::Lz4Dict
            | Codec::Lzo
            | Codec::LzoRle
            | Codec::C842
            | Codec::Zstd => 1,
            Codec::ZstdDict => 3,
            Codec::Deflate => 6,
            Codec::Lz4hc => 9,
        }
    }

    /// Levels the codec accepts, inclusive. LZ4HC's own scale goes to 12; from level 10 on it calls
    /// `malloc` for each page, which the runtime must not, and saves hardly more than at 9.
    pub fn levels(self) -> (i32, i32) {
        match self {
            Codec::Lz4 | Codec::Lz4Dict => (1, 65),
            Codec::Lzo | Codec::LzoRle | Codec::C842 => (1, 1),
            Codec::Deflate => (1, 12),
            Codec::Zstd | Codec::ZstdDict => (-7, 19),
            Codec::Lz4hc => (2, 9),
        }
    }

    /// Whether what it makes of a page depends on a dictionary of the application's own.
    pub fn uses_dictionary(self) -> bool {
        matches!(self, Codec::ZstdDict | Codec::Lz4Dict)
    }

    /// Inverse of [`Codec::name`].
    pub fn from_name(name: &str) -> Option<Codec> {
        Codec::ALL.into_iter().find(|c| c.name() == name)
    }

    /// Inverse of the discriminant.
    pub fn from_wire(n: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|c| *c as u8 == n)
    }
}

/// A manager of variable-size objects in pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Pool {
    /// At most two objects a page: simple, quick, never better than 2:1.
    Zbud = 0,
    /// Size classes over runs of pages: dense.
    Zsmalloc = 1,
    /// At most three objects a page: between the two in density, and compacted.
    Z3fold = 2,
}

impl Pool {
    /// All pool managers, in wire order.
    pub const ALL: [Pool; 3] = [Pool::Zbud, Pool::Zsmalloc, Pool::Z3fold];

    /// Name in configuration files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Pool::Zbud => "zbud",
            Pool::Zsmalloc => "zsmalloc",
            Pool::Z3fold => "z3fold",
        }
    }

    /// Inverse of [`Pool::name`].
    pub fn from_name(name: &str) -> Option<Pool> {
        Pool::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Inverse of the discriminant.
    pub fn from_wire(n: u8) -> Option<Pool> {
        Pool::ALL.into_iter().find(|p| *p as u8 == n)
    }
}

/// What kind of place a medium is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MediumKind {
    /// The machine's own memory.
    Dram = 0,
    /// DRAM with added latency and limited bandwidth, standing in for a medium this machine does
    /// not have. Every report says so, and no money is counted for it.
    Emulated = 1,
    /// Memory of one NUMA node: further away than the others, as CXL memory is.
    Numa = 2,
    /// A file without a name on some filesystem, enciphered.
    File = 3,
    /// A DAX device, or a file on a filesystem mounted with DAX, mapped.
    Dax = 4,
}

impl MediumKind {
    /// All kinds, in wire order.
    pub const ALL: [MediumKind; 5] = [
        MediumKind::Dram,
        MediumKind::Emulated,
        MediumKind::Numa,
        MediumKind::File,
        MediumKind::Dax,
    ];

    /// Name in configuration files and reports.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::Dram => "dram",
            MediumKind::Emulated => "emulated",
            MediumKind::Numa => "numa",
            MediumKind::File => "file",
            MediumKind::Dax => "dax",
        }
    }

    /// Inverse of [`MediumKind::name`].
    pub fn from_name(name: &str) -> Option<MediumKind> {
        MediumKind::ALL.into_iter().find(|m| m.name() == name)
    }

    /// Inverse of the discriminant.
    pub fn from_wire(n: u8) -> Option<MediumKind> {
        MediumKind::ALL.into_iter().find(|m| *m as u8 == n)
    }

    /// Whether what a pool holds there is part of the process' resident set.
    pub fn is_resident(self) -> bool {
        matches!(self, MediumKind::Dram | MediumKind::Emulated | MediumKind::Numa)
    }
}

/// Longest path of a [`Place`], bytes.
pub const PATH_BYTES_MAX: usize = 1024;

/// Where on the machine a medium is. What a kind has no use for is empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// `file`: the directory of the file. `dax`: the device or file. Absolute, at most
    /// [`PATH_BYTES_MAX`].
    pub path: String,
    /// `numa`: the node.
    pub node: u32,
    /// Most that one process puts there, bytes; 0 for as much as the machine has memory.
    pub capacity_bytes: u64,
    /// `dax`: what is stored is enciphered, as it always is in a file.
    pub is_enciphered: bool,
}

/// A place with a price. Latency and bandwidth are only applied by `emulated` media; for real ones
/// they are measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Medium {
    /// Name in configuration files and reports, such as `dram` or `slow`.
    pub name: String,
    /// What it is made of.
    pub kind: MediumKind,
    /// Price in US dollars per GiB and month.
    pub usd_per_gib_month: f64,
    /// Added latency of one access to an object, in nanoseconds (`emulated` only).
    pub latency_ns: u64,
    /// Bandwidth in MiB per second, 0 for unlimited (`emulated` only).
    pub bandwidth_mib_s: u64,
    /// Where it is (`numa`, `file`, `dax`).
    pub place: Place,
}

impl Medium {
    /// The machine's own memory, named `dram`, at a price in US dollars per GiB and month.
    pub fn dram(usd_per_gib_month: f64) -> Medium {
        Medium {
            name: "dram".into(),
            kind: MediumKind::Dram,
            usd_per_gib_month,
            latency_ns: 0,
            bandwidth_mib_s: 0,
            place: Place::default(),
        }
    }
}

/// One compressed tier: codec + pool + medium (TierScape, section 4).
#[derive(Clone, PartialEq, Debug)]
pub struct TierSpec {
    /// Name in reports; by default `pool+codec+medium`, as the issue texts and the paper write it.
    pub name: String,
    /// The codec.
    pub codec: Codec,
    /// Its level, within [`Codec::levels`].
    pub level: i32,
    /// The pool manager.
    pub pool: Pool,
    /// Where the pool's pages live.
    pub medium: Medium,
    /// KiB that are compressed together, one of [`BLOCK_KIB`]; 0 where each page is compressed by
    /// itself. Only [`Codec::Zstd`] has blocks.
    pub block_kib: u8,
}

/// What a tier of blocks may compress together, in KiB.
pub const BLOCK_KIB: [u8; 3] = [16, 32, 64];

/// The level of a tier of blocks when the configuration names none: level 1 of single pages saves
/// less than the blocks themselves do, level 9 takes four times as long to encode.
pub const BLOCK_LEVEL_DEFAULT: i32 = 3;

impl TierSpec {
    /// A tier with the codec's default level and the canonical name `pool+codec+medium`.
    pub fn new(pool: Pool, codec: Codec, medium: Medium) -> TierSpec {
        TierSpec {
            name: format!("{}+{}+{}", pool.name(), codec.name(), medium.name),
            codec,
            level: codec.default_level(),
            pool,
            medium,
            block_kib: 0,
        }
    }

    /// Longest encoding that it should take of a page, in bytes, where in DRAM that is `of_dram`:
    /// what costs as much here. On a medium that is cheaper than DRAM a page that hardly shrinks is
    /// worth taking, too, and where it is a page's length one that does not shrink at all. (In a
    /// block no page has a length of its own; there it is `of_dram`.)
    pub fn cutoff_bytes(&self, of_dram: u32, dram_usd_per_gib_month: f64) -> u32 {
        // A page as it is saves nothing at the price of DRAM.
        let whole = PAGE_BYTES as u32;
        let of_dram = of_dram.min(whole - 1);
        let as_much = f64::from(of_dram) * dram_usd_per_gib_month / self.medium.usd_per_gib_month;
        match self.block_kib {
            // (Where both are free there is nothing to compare: not a number becomes 0.)
            0 => (as_much as u32).clamp(of_dram, whole),
            _ => of_dram,
        }
    }

    /// A tier of Zstandard blocks of so many KiB, named `pool+zstd+64k+medium`.
    pub fn with_blocks(pool: Pool, block_kib: u8, medium: Medium) -> TierSpec {
        let codec = Codec::Zstd;
        TierSpec {
            name: format!("{}+{}+{block_kib}k+{}", pool.name(), codec.name(), medium.name),
            level: BLOCK_LEVEL_DEFAULT,
            block_kib,
            ..TierSpec::new(pool, codec, medium)
        }
    }

    /// Pages that are compressed together; 1 where each is by itself.
    pub fn pages_per_block(&self) -> usize {
        (usize::from(self.block_kib) / 4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_named_and_as_long_as_they_say() {
        let dram = || Medium::dram(1.0);
        let large = TierSpec::with_blocks(Pool::Zsmalloc, 64, dram());
        assert_eq!((large.name.as_str(), large.level), ("zsmalloc+zstd+64k+dram", 3));
        assert_eq!(
            BLOCK_KIB.map(|k| TierSpec::with_blocks(Pool::Zbud, k, dram()).pages_per_block()),
            [4, 8, 16]
        );
        assert_eq!(TierSpec::new(Pool::Zbud, Codec::Zstd, dram()).pages_per_block(), 1);
    }

    #[test]
    fn a_cheaper_medium_takes_what_shrinks_less() {
        let of_dram = 2_990;
        let cutoff = |usd, block_kib| {
            let tier = TierSpec::new(Pool::Zsmalloc, Codec::Zstd, Medium::dram(usd));
            TierSpec { block_kib, ..tier }.cutoff_bytes(of_dram, 0.3)
        };
        assert_eq!(cutoff(0.3, 0), of_dram);
        assert_eq!(cutoff(0.24, 0), 3_737);
        assert_eq!((cutoff(0.1, 0), cutoff(0.0, 0)), (4_096, 4_096));
        assert_eq!((cutoff(0.6, 0), cutoff(0.1, 64)), (of_dram, of_dram));
        let free = TierSpec::new(Pool::Zbud, Codec::Lz4, Medium::dram(0.0));
        assert_eq!(free.cutoff_bytes(of_dram, 0.0), of_dram);
        assert_eq!(free.cutoff_bytes(9_999, 0.3), 4_096);
        let dram = TierSpec::new(Pool::Zbud, Codec::Lz4, Medium::dram(0.3));
        assert_eq!(dram.cutoff_bytes(4_096, 0.3), 4_095);
    }

    #[test]
    fn names_and_wire_numbers_are_inverse() {
        for c in Codec::ALL {
            assert_eq!(Codec::from_name(c.name()), Some(c));
            assert_eq!(Codec::from_wire(c as u8), Some(c));
            let (lo, hi) = c.levels();
            assert!(lo <= c.default_level() && c.default_level() <= hi);
        }
        for p in Pool::ALL {
            assert_eq!(Pool::from_name(p.name()), Some(p));
            assert_eq!(Pool::from_wire(p as u8), Some(p));
        }
        for m in MediumKind::ALL {
            assert_eq!(MediumKind::from_name(m.name()), Some(m));
            assert_eq!(MediumKind::from_wire(m as u8), Some(m));
        }
        assert_eq!(Codec::from_wire(200), None);
        assert_eq!(Pool::from_name("slab"), None);
    }
}
