//! Media and tiers as a configuration file has them: the inverse of [`super::file::parse`].

use std::fmt::Write as _;

use terrace_core::tier::{Medium, TierSpec};

use crate::media;

/// `[[medium]]` and `[[tier]]` sections that are read as these tiers, on their media and `dram`.
pub fn toml(dram: &Medium, tiers: &[TierSpec]) -> String {
    let mut media = vec![dram];
    for medium in tiers.iter().map(|t| &t.medium) {
        if !media.iter().any(|m| m.name == medium.name) {
            media.push(medium);
        }
    }
    let mut text = String::new();
    for m in media {
        text += &media::toml(m);
        text.push('\n');
    }
    for t in tiers {
        let _ = write!(
            text,
            "[[tier]]\nname = {:?}\ncodec = {:?}\nlevel = {}\npool = {:?}\nmedium = {:?}\n",
            t.name,
            t.codec.name(),
            t.level,
            t.pool.name(),
            t.medium.name
        );
        if t.block_kib > 0 {
            let _ = writeln!(text, "block_kib = {}", t.block_kib);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;
    use crate::preset::{self, Preset};
    use terrace_core::tier::{Codec, Pool, BLOCK_KIB};

    #[test]
    fn what_is_written_is_read_back() {
        let dram = preset::dram(0.7);
        for media in [preset::dram(0.7), preset::slow(0.7)] {
            let tiers: Vec<TierSpec> = Codec::ALL
                .into_iter()
                .flat_map(|c| Pool::ALL.map(|p| TierSpec::new(p, c, media.clone())))
                .take(12)
                .chain(BLOCK_KIB.map(|kib| TierSpec::with_blocks(Pool::Zbud, kib, media.clone())))
                .collect();
            let text = toml(&dram, &tiers);
            let config = file::parse("t", &text, Preset::Auto).unwrap();
            assert_eq!(config.tiers, tiers, "{text}");
            assert_eq!(config.dram(), &dram);
        }
    }
}
