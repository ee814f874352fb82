//! Encryption of blocks that leave memory, with a key that never does.
//!
//! ChaCha20 (RFC 8439) with a random key for each medium, made when the medium is opened, and a
//! nonce that no two writes share: the number of the block and how often it was written. The key is
//! nowhere but in this struct, so what stays on a device when the process ends is noise.
//!
//! What it is not: it hides bytes, it does not vouch for them. Somebody who can write to the device
//! can flip bits; the checksum of a page (`page.rs`) finds accidents, not intent.
//!
//! Why ChaCha20 and not AES-XTS: a stream cipher deciphers only the bytes asked for (an object is a
//! part of a block), needs no tweak scheme once writes are counted, shows nothing when a block is
//! written again with little changed, and is about as fast without AES instructions as with them.

use super::device;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use chacha20::{ChaCha20, Key, Nonce};

/// A key and what it is used for.
pub struct BlockCipher {
    key: Key,
}

impl core::fmt::Debug for BlockCipher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("BlockCipher")
    }
}

impl BlockCipher {
    /// A fresh key from the kernel's generator.
    pub fn random() -> std::io::Result<BlockCipher> {
        let mut key = Key::default();
        device::random(&mut key)?;
        Ok(BlockCipher { key })
    }

    /// Enciphers or deciphers the bytes from `at` on of block `number` as it is at its write
    /// `count`. The caller never enciphers twice with one pair of `number` and `count`.
    pub fn apply(&self, number: u64, count: u32, at: usize, bytes: &mut [u8]) {
        let mut nonce = Nonce::default();
        let (low, high) = nonce.split_at_mut(8);
        low.copy_from_slice(&number.to_le_bytes());
        high.copy_from_slice(&count.to_le_bytes());
        let mut stream = ChaCha20::new(&self.key, &nonce);
        // Neither can fail: a block is far shorter than the 256 GiB that a nonce is good for.
        let _ = stream.try_seek(at as u64);
        let _ = stream.try_apply_keystream(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_a_block_deciphers_alone_and_no_two_writes_look_alike() {
        let cipher = BlockCipher::random().unwrap();
        let plain: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
        let (mut first, mut second) = (plain.clone(), plain.clone());
        cipher.apply(9, 1, 0, &mut first);
        cipher.apply(9, 2, 0, &mut second);
        let same = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(x, y)| x == y).count();
        // One byte in 256 agrees by chance.
        assert!(same(&first, &plain) < 64 && same(&first, &second) < 64);
        for (from, to) in [(0, 4096), (1, 2), (63, 65), (4095, 4096), (1000, 3001)] {
            let mut part = first[from..to].to_vec();
            cipher.apply(9, 1, from, &mut part);
            assert_eq!(part, plain[from..to]);
        }
        let mut other = first.clone();
        BlockCipher::random().unwrap().apply(9, 1, 0, &mut other);
        assert!(same(&other, &plain) < 64);
    }
}
