//! As much of the protocols of Redis (RESP) and memcached (text) as storing and fetching takes.

use std::io::Write;

use anyhow::{bail, ensure, Context, Result};

use super::server::Kind;
use crate::demo::content::Value;

/// No first line of a reply is longer.
const LINE_BYTES_MAX: usize = 512;

/// One reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// It is stored.
    Stored,
    /// This is what was stored.
    Value(&'a [u8]),
    /// Nothing is stored there.
    Missing,
    /// The server did not do it.
    Refused(String),
}

/// Appends a request for the value of a key.
pub(super) fn encode_get(kind: Kind, out: &mut Vec<u8>, key: u64) {
    // Writing to a vector cannot fail.
    let _ = match kind {
        Kind::Redis => write!(out, "*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n"),
        Kind::Memcached => write!(out, "get key:{key:010}\r\n"),
    };
}

/// Appends a request to store a value.
pub(super) fn encode_set(kind: Kind, out: &mut Vec<u8>, key: u64, value: &Value<'_>) {
    let length = value.byte_len();
    let _ = match kind {
        Kind::Redis => {
            write!(out, "*3\r\n$3\r\nSET\r\n$14\r\nkey:{key:010}\r\n${length}\r\n")
        }
        Kind::Memcached => write!(out, "set key:{key:010} 0 0 {length}\r\n"),
    };
    value.append_to(out);
    out.extend_from_slice(b"\r\n");
}

/// The reply at the front of `bytes` and its length; `None` while it is incomplete.
pub(super) fn parse(kind: Kind, bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>> {
    // Values come after the first line, which is short.
    let Some(end) = bytes.iter().take(LINE_BYTES_MAX).position(|b| *b == b'\n') else {
        ensure!(bytes.len() < LINE_BYTES_MAX, "not a reply of {}", kind.name());
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end]).unwrap_or("").trim_end();
    match kind {
        Kind::Redis => parse_redis(bytes, line, end + 1),
        Kind::Memcached => parse_memcached(bytes, line, end + 1),
    }
}

fn parse_redis<'a>(
    bytes: &'a [u8],
    line: &str,
    after: usize,
) -> Result<Option<(Reply<'a>, usize)>> {
    let reply = match line.split_at_checked(1) {
        Some(("+", _)) => Reply::Stored,
        Some(("-", why)) => Reply::Refused(why.to_owned()),
        Some(("$", "-1")) => Reply::Missing,
        Some(("$", length)) => {
            let length = length.parse().context("the length of a reply")?;
            return value(bytes, after, length, b"\r\n");
        }
        _ => bail!("not a reply of redis: {line:?}"),
    };
    Ok(Some((reply, after)))
}

fn parse_memcached<'a>(
    bytes: &'a [u8],
    line: &str,
    after: usize,
) -> Result<Option<(Reply<'a>, usize)>> {
    let mut words = line.split(' ');
    let reply = match words.next().unwrap_or("") {
        "STORED" => Reply::Stored,
        "END" => Reply::Missing,
        "ERROR" | "SERVER_ERROR" | "CLIENT_ERROR" | "NOT_STORED" => Reply::Refused(line.to_owned()),
        "VALUE" => {
            // VALUE <key> <flags> <bytes>
            let length = words.nth(2).unwrap_or("").parse().context("the length of a reply")?;
            return value(bytes, after, length, b"\r\nEND\r\n");
        }
        _ => bail!("not a reply of memcached: {line:?}"),
    };
    Ok(Some((reply, after)))
}

/// A value of `length` bytes at `from`, once it and its `tail` are there.
fn value<'a>(
    bytes: &'a [u8],
    from: usize,
    length: usize,
    tail: &[u8],
) -> Result<Option<(Reply<'a>, usize)>> {
    let end = from.checked_add(length).context("the length of a reply")?;
    if bytes.len() < end + tail.len() {
        return Ok(None);
    }
    ensure!(bytes[end..].starts_with(tail), "a value does not end where it should");
    Ok(Some((Reply::Value(&bytes[from..end]), end + tail.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incomplete_until(kind: Kind, whole: &[u8], length: usize) {
        for cut in 0..length {
            assert!(parse(kind, &whole[..cut]).unwrap().is_none(), "cut at {cut}");
        }
    }

    #[test]
    fn redis_replies() {
        let whole = b"$5\r\nhello\r\n+OK\r\n";
        incomplete_until(Kind::Redis, whole, 11);
        let get = |bytes| parse(Kind::Redis, bytes);
        assert_eq!(get(whole).unwrap(), Some((Reply::Value(b"hello"), 11)));
        assert_eq!(get(&whole[11..]).unwrap(), Some((Reply::Stored, 5)));
        assert_eq!(get(b"$-1\r\n").unwrap(), Some((Reply::Missing, 5)));
        let no = Reply::Refused("ERR no".to_owned());
        assert_eq!(get(b"-ERR no\r\n").unwrap(), Some((no, 9)));
        assert!(get(b"?what\r\n").is_err() && get(b"\n").is_err());
        assert!(get(b"$1\r\nabc\r\n").is_err());
    }

    #[test]
    fn memcached_replies() {
        let whole = b"VALUE key:1 0 5\r\nhello\r\nEND\r\nSTORED\r\n";
        incomplete_until(Kind::Memcached, whole, 29);
        let get = |bytes| parse(Kind::Memcached, bytes);
        assert_eq!(get(whole).unwrap(), Some((Reply::Value(b"hello"), 29)));
        assert_eq!(get(&whole[29..]).unwrap(), Some((Reply::Stored, 8)));
        assert_eq!(get(b"END\r\n").unwrap(), Some((Reply::Missing, 5)));
        let full = "SERVER_ERROR out of memory storing object";
        let reply = format!("{full}\r\n");
        assert_eq!(
            get(reply.as_bytes()).unwrap(),
            Some((Reply::Refused(full.to_owned()), reply.len()))
        );
        assert!(get(b"WHAT\r\n").is_err() && get(b"VALUE k 0 x\r\n").is_err());
        assert!(get(b"VALUE k 0 1\r\nabcdefghijkl\r\n").is_err());
        assert!(get(&[b'a'; LINE_BYTES_MAX]).is_err());
    }
}
