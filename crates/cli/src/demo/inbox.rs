//! What a server has answered and nobody has read yet, on a connection with many requests under
//! way.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::sys;

/// Bytes from a connection, in order.
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// Nothing yet, and room for so many bytes, which must be more than any reply.
    pub fn with_room(bytes: usize) -> Inbox {
        Inbox { buffer: vec![0; bytes], start: 0, end: 0 }
    }

    /// What has come and was not taken yet.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes so many bytes from the front.
    pub fn take(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Waits for more until the connection's own time limit, and for no more than `patience` since
    /// `asked`; an interrupt ends the wait, too.
    pub fn receive(
        &mut self,
        from: &mut impl Read,
        asked: Instant,
        patience: Duration,
    ) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        ensure!(self.end < self.buffer.len(), "a reply is longer than any value written");
        match from.read(&mut self.buffer[self.end..]) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(n) => self.end += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                sys::stop_if_interrupted()?;
                ensure!(asked.elapsed() < patience, "no reply for {patience:?}");
            }
            Err(e) => return Err(e).context("reading replies"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives what it was given, piece by piece, then has nothing for now.
    struct Pieces<'a>(Vec<&'a [u8]>);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            match self.0.pop() {
                Some(mut piece) => piece.read(into),
                None => Err(ErrorKind::WouldBlock.into()),
            }
        }
    }

    #[test]
    fn bytes_come_in_order_and_room_is_used_again() {
        let (mut inbox, now) = (Inbox::with_room(4), Instant::now());
        let mut from = Pieces(vec![b"defg", b"abc"]);
        inbox.receive(&mut from, now, Duration::MAX).unwrap();
        assert_eq!(inbox.bytes(), b"abc");
        inbox.take(2);
        inbox.receive(&mut from, now, Duration::MAX).unwrap();
        assert_eq!(inbox.bytes(), b"cdef");
        let full = inbox.receive(&mut from, now, Duration::MAX).unwrap_err();
        assert!(full.to_string().contains("longer than"), "{full}");
    }

    #[test]
    fn a_server_that_is_silent_or_gone_is_an_error() {
        let (mut inbox, now) = (Inbox::with_room(4), Instant::now());
        inbox.receive(&mut Pieces(Vec::new()), now, Duration::MAX).unwrap();
        let silent = inbox.receive(&mut Pieces(Vec::new()), now, Duration::ZERO).unwrap_err();
        assert!(silent.to_string().contains("no reply"), "{silent}");
        let gone = inbox.receive(&mut std::io::empty(), now, Duration::MAX).unwrap_err();
        assert!(gone.to_string().contains("closed"), "{gone}");
    }
}
