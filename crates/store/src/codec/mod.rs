//! Codecs: 4 KiB in, fewer bytes out, and back.
//!
//! Encoding and decoding are apart because they happen in different threads with different rules:
//! the pager owns a [`DecoderSet`] and nothing else; a mover owns an [`EncoderSet`], and a
//! [`DecoderSet`] as soon as something moves between codecs. A context is made whole, an encoder's
//! when it is first asked for; after that neither encoding nor decoding allocates, whatever the
//! input.
//!
//! Memory of one context in bytes (each reports its own by `context_bytes`, a test holds these):
//!
//! | codec | encoder | decoder |
//! |---|---|---|
//! | lz4 | 16 Ki (hash table) | 0 |
//! | lzo | 12 Ki (hash table and stream) | 0 |
//! | deflate | 198 Ki at level 1, 652 Ki at 6, under 10 Mi from 10 on | 12 Ki |
//! | zstd | 72 Ki up to level 2, 88 Ki at 3, under 400 Ki at 19 | 94 Ki |
//! | lz4hc | 256 Ki (hash and chain tables) | 0 |
//! | lzo-rle | 12 Ki (hash table and stream) | 0 |
//! | 842 | 16 Ki (hash tables and stream) | 0 |
//! | zstd-dict | as zstd and the tables of a dictionary, 1 Mi at most | 94 Ki |
//! | lz4-dict | 32 Ki (two hash tables) | 0 |
//!
//! What reads blocks of zstd takes 128 Ki besides zstd's decoder, where a tier has blocks
//! ([`crate::blocks`]).
//!
//! A dictionary itself takes its length and 27 Ki, once for the process ([`dictionary`]).
//!
//! What each makes of pages, and how fast: `examples/tier_bench.rs`. Each is checked against
//! another implementation of its format (`foreign_tests.rs`), and its decoder against any bytes
//! (`fuzz.rs`).

pub mod block;
pub mod c842;
mod crc32;
pub mod deflate;
pub mod dictionary;
pub mod lz4;
pub mod lz4_dict;
pub mod lz4hc;
pub mod lzo;
pub mod trainer;
pub mod zstd;
pub mod zstd_dict;

#[cfg(test)]
mod foreign_tests;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod plain;
#[cfg(test)]
mod tests;

use crate::blocks::Reader;
use crate::Page;
use dictionary::Dictionaries;
use std::sync::Arc;
use terrace_core::tier::Codec;

/// The stored bytes are not the encoding of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt;

impl core::fmt::Display for Corrupt {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("stored bytes are not the encoding of a page")
    }
}

impl std::error::Error for Corrupt {}

/// A codec context could not be made: a level out of range, or no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextError {
    /// The codec.
    pub codec: Codec,
    /// The level that was asked for.
    pub level: i32,
}

impl core::fmt::Display for ContextError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no {} context of level {}", self.codec.name(), self.level)
    }
}

impl std::error::Error for ContextError {}

/// One codec at one level, ready to encode.
pub enum Encoder {
    /// LZ4 block.
    Lz4(lz4::Encoder),
    /// LZO1X, with or without runs of zeros.
    Lzo(lzo::Encoder),
    /// Raw deflate.
    Deflate(deflate::Encoder),
    /// Zstandard.
    Zstd(zstd::Encoder),
    /// LZ4 block from the searching encoder.
    Lz4hc(lz4hc::Encoder),
    /// 842.
    C842(c842::Encoder),
    /// Zstandard behind a dictionary.
    ZstdDict(zstd_dict::Encoder),
    /// LZ4 behind a dictionary.
    Lz4Dict(lz4_dict::Encoder),
}

impl Encoder {
    /// Makes the context; the only place where an encoder allocates. A codec with dictionaries
    /// gets none.
    pub fn new(codec: Codec, level: i32) -> Result<Encoder, ContextError> {
        Encoder::with_dictionaries(codec, level, &Dictionaries::new())
    }

    /// As [`Encoder::new`], with the application's dictionaries.
    pub fn with_dictionaries(
        codec: Codec,
        level: i32,
        dictionaries: &Arc<Dictionaries>,
    ) -> Result<Encoder, ContextError> {
        let (lowest, highest) = codec.levels();
        let error = ContextError { codec, level };
        if !(lowest..=highest).contains(&level) {
            return Err(error);
        }
        Ok(match codec {
            Codec::Lz4 => Encoder::Lz4(lz4::Encoder::new(level)),
            Codec::Lzo => Encoder::Lzo(lzo::Encoder::new()),
            Codec::Deflate => Encoder::Deflate(deflate::Encoder::new(level).ok_or(error)?),
            Codec::Zstd => Encoder::Zstd(zstd::Encoder::new(level).ok_or(error)?),
            Codec::Lz4hc => Encoder::Lz4hc(lz4hc::Encoder::new(level).ok_or(error)?),
            Codec::LzoRle => Encoder::Lzo(lzo::Encoder::with_zero_runs()),
            Codec::C842 => Encoder::C842(c842::Encoder::new()),
            Codec::ZstdDict => Encoder::ZstdDict(
                zstd_dict::Encoder::new(level, dictionaries.clone()).ok_or(error)?,
            ),
            Codec::Lz4Dict => {
                Encoder::Lz4Dict(lz4_dict::Encoder::new(level, dictionaries.clone()).ok_or(error)?)
            }
        })
    }

    /// Encodes a page into `out` and returns the encoded length, or `None` if it does not fit.
    /// The caller sizes `out` to the cut-off. What is in `out` after `None` has no meaning.
    pub fn encode(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        match self {
            Encoder::Lz4(e) => e.encode(page, out),
            Encoder::Lzo(e) => e.encode(page, out),
            Encoder::Deflate(e) => e.encode(page, out),
            Encoder::Zstd(e) => e.encode(page, out),
            Encoder::Lz4hc(e) => e.encode(page, out),
            Encoder::C842(e) => e.encode(page, out),
            Encoder::ZstdDict(e) => e.encode(page, out),
            Encoder::Lz4Dict(e) => e.encode(page, out),
        }
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        match self {
            Encoder::Lz4(e) => e.context_bytes(),
            Encoder::Lzo(e) => e.context_bytes(),
            Encoder::Deflate(e) => e.context_bytes(),
            Encoder::Zstd(e) => e.context_bytes(),
            Encoder::Lz4hc(e) => e.context_bytes(),
            Encoder::C842(e) => e.context_bytes(),
            Encoder::ZstdDict(e) => e.context_bytes(),
            Encoder::Lz4Dict(e) => e.context_bytes(),
        }
    }
}

/// The encoders of one thread, in the order of the list they are for. Each is made when it is first
/// asked for: a level that searches takes hundreds of KiB, and many programs never use its tier.
pub struct EncoderSet {
    /// One for each distinct (codec, level).
    encoders: Vec<Place>,
    /// From place in the list to place in `encoders`.
    by_tier: Vec<usize>,
    dictionaries: Arc<Dictionaries>,
}

/// An encoder, once somebody wanted it.
struct Place {
    codec: Codec,
    level: i32,
    made: Option<Encoder>,
}

impl EncoderSet {
    /// One encoder for each entry; equal entries share one. No dictionaries.
    pub fn new(list: &[(Codec, i32)]) -> Result<EncoderSet, ContextError> {
        EncoderSet::with_dictionaries(list, &Dictionaries::new())
    }

    /// As [`EncoderSet::new`], with the application's dictionaries. The error is a level out of
    /// range.
    pub fn with_dictionaries(
        list: &[(Codec, i32)],
        dictionaries: &Arc<Dictionaries>,
    ) -> Result<EncoderSet, ContextError> {
        let dictionaries = dictionaries.clone();
        let mut set = EncoderSet { encoders: Vec::new(), by_tier: Vec::new(), dictionaries };
        for &(codec, level) in list {
            let (lowest, highest) = codec.levels();
            if !(lowest..=highest).contains(&level) {
                return Err(ContextError { codec, level });
            }
            let known = set.encoders.iter().position(|p| (p.codec, p.level) == (codec, level));
            let place = known.unwrap_or(set.encoders.len());
            if known.is_none() {
                set.encoders.push(Place { codec, level, made: None });
            }
            set.by_tier.push(place);
        }
        Ok(set)
    }

    /// The encoder for entry `n` of the list (its place there, which is not a tier's number).
    /// Allocates when it is asked for the first time; `None` if there is no such entry, or no
    /// memory.
    pub fn get(&mut self, n: usize) -> Option<&mut Encoder> {
        let place = self.encoders.get_mut(*self.by_tier.get(n)?)?;
        if place.made.is_none() {
            let made = Encoder::with_dictionaries(place.codec, place.level, &self.dictionaries);
            place.made = made.ok();
        }
        place.made.as_mut()
    }

    /// Memory held, in bytes.
    pub fn context_bytes(&self) -> usize {
        self.encoders.iter().flat_map(|p| &p.made).map(Encoder::context_bytes).sum()
    }
}

/// The decoders of one thread. Codecs that were not asked for decode nothing.
pub struct DecoderSet {
    /// By wire number: asked for.
    known: [bool; Codec::ALL.len()],
    deflate: Option<deflate::Decoder>,
    /// Where blocks are read, their reader has it.
    zstd: Option<zstd::Decoder>,
    zstd_dict: Option<zstd_dict::Decoder>,
    lz4_dict: Option<Arc<Dictionaries>>,
    /// Of tiers of blocks.
    blocks: Option<Box<Reader>>,
}

impl DecoderSet {
    /// Decoders for these codecs (decoding does not depend on the level).
    /// What was encoded with a dictionary cannot be decoded.
    pub fn new(codecs: impl IntoIterator<Item = Codec>) -> Result<DecoderSet, ContextError> {
        DecoderSet::with_dictionaries(codecs, &Dictionaries::new())
    }

    /// As [`DecoderSet::new`], with the application's dictionaries. One that is published later is
    /// known from then on.
    pub fn with_dictionaries(
        codecs: impl IntoIterator<Item = Codec>,
        dictionaries: &Arc<Dictionaries>,
    ) -> Result<DecoderSet, ContextError> {
        let mut set = DecoderSet {
            known: [false; Codec::ALL.len()],
            deflate: None,
            zstd: None,
            zstd_dict: None,
            lz4_dict: None,
            blocks: None,
        };
        for codec in codecs {
            let error = ContextError { codec, level: 0 };
            set.known[codec as usize] = true;
            match codec {
                Codec::Deflate if set.deflate.is_none() => {
                    set.deflate = Some(deflate::Decoder::new().ok_or(error)?);
                }
                Codec::Zstd if set.zstd.is_none() => {
                    set.zstd = Some(zstd::Decoder::new().ok_or(error)?);
                }
                Codec::ZstdDict if set.zstd_dict.is_none() => {
                    let decoder = zstd_dict::Decoder::new(dictionaries.clone());
                    set.zstd_dict = Some(decoder.ok_or(error)?);
                }
                Codec::Lz4Dict => set.lz4_dict = Some(dictionaries.clone()),
                _ => {}
            }
        }
        Ok(set)
    }

    /// Lets this set read pages of tiers of blocks, too.
    pub fn add_blocks(&mut self) -> Result<(), ContextError> {
        if self.blocks.is_none() {
            let error = ContextError { codec: Codec::Zstd, level: 0 };
            let decoder = self.zstd.take().or_else(zstd::Decoder::new).ok_or(error)?;
            self.blocks = Some(Box::new(Reader::with(decoder)));
        }
        Ok(())
    }

    /// What reads pages of blocks, if it was asked for.
    pub(crate) fn blocks(&mut self) -> Option<&mut Reader> {
        self.blocks.as_deref_mut()
    }

    /// Decodes into exactly one page. On error the content of `page` has no meaning.
    pub fn decode(&mut self, codec: Codec, stored: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        if !self.known[codec as usize] {
            return Err(Corrupt);
        }
        match codec {
            Codec::Lz4 | Codec::Lz4hc => lz4::decode(stored, page),
            Codec::Lzo => lzo::decode(stored, page),
            Codec::LzoRle => lzo::decode_with_zero_runs(stored, page),
            Codec::C842 => c842::decode(stored, page),
            Codec::Deflate => self.deflate.as_mut().ok_or(Corrupt)?.decode(stored, page),
            Codec::Zstd => {
                let of_blocks = self.blocks.as_mut().map(|b| b.single());
                self.zstd.as_mut().or(of_blocks).ok_or(Corrupt)?.decode(stored, page)
            }
            Codec::ZstdDict => self.zstd_dict.as_mut().ok_or(Corrupt)?.decode(stored, page),
            Codec::Lz4Dict => {
                lz4_dict::decode(self.lz4_dict.as_ref().ok_or(Corrupt)?, stored, page)
            }
        }
    }

    /// Memory held, in bytes, without the dictionaries, which all decoders share.
    pub fn context_bytes(&self) -> usize {
        self.deflate.as_ref().map_or(0, deflate::Decoder::context_bytes)
            + self.zstd.as_ref().map_or(0, zstd::Decoder::context_bytes)
            + self.zstd_dict.as_ref().map_or(0, zstd_dict::Decoder::context_bytes)
            + self.blocks.as_ref().map_or(0, |b| b.context_bytes())
    }
}
