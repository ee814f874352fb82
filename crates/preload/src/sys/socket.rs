//! The few things about Unix sockets that std has no word for.

use crate::interpose;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// The user whose rights this process has now.
pub fn effective_user() -> u32 {
    // SAFETY: a system call without arguments that cannot fail.
    unsafe { libc::geteuid() }
}

/// The user at the other end: as it was when that end connected or began to listen.
pub fn peer_user(stream: &UnixStream) -> Option<u32> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = std::mem::size_of_val(&cred) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `cred`.
    let r = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut cred).cast(),
            &mut len,
        )
    };
    (r == 0).then_some(cred.uid)
}

/// Listens at `path`, for its owner only. What a process that is gone has left there is removed.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let bound = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_deserted(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(bound)
}

/// Has an `accept` that nobody answers end after so long.
pub fn limit_wait(listener: &UnixListener, limit: Duration) {
    let time = libc::timeval {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(limit.subsec_micros()),
    };
    // SAFETY: the kernel reads a time of that size.
    unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            std::ptr::from_ref(&time).cast(),
            std::mem::size_of_val(&time) as libc::socklen_t,
        );
    }
}

/// Whether nobody listens on the socket at `path`. Asked with a datagram: a listener refuses that
/// by its type and is not disturbed.
pub fn is_deserted(path: &Path) -> bool {
    let asked = UnixDatagram::unbound().and_then(|s| s.connect(path));
    asked.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Puts the connection `new` behind the descriptor of `old`, which keeps its number: it is known
/// as ours (`interpose.rs`), and numbers that were ours must not be the application's for a moment.
pub fn put_in_place(old: &UnixStream, new: UnixStream) -> bool {
    interpose::replace_ours(new.as_raw_fd(), old.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn path(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_deserted_socket_is_taken_over_and_a_live_one_is_not() {
        // (One of another test's would have the socket, too.)
        let _alone = crate::sys::CHILDREN_IN_TESTS.lock().unwrap_or_else(|e| e.into_inner());
        let path = path("deserted");
        let first = listen(&path).expect("listens");
        assert_eq!(std::fs::metadata(&path).expect("a socket").permissions().mode() & 0o777, 0o600);
        assert!(!is_deserted(&path));
        assert_eq!(listen(&path).err().map(|e| e.kind()), Some(io::ErrorKind::AddrInUse));
        first.set_nonblocking(true).expect("a socket");
        assert!(first.accept().is_err(), "asking left a connection behind");
        drop(first);
        assert!(is_deserted(&path));
        listen(&path).expect("takes over");
        std::fs::remove_file(&path).expect("removed");
        assert!(!is_deserted(&path), "nothing there is not a deserted socket");
    }

    #[test]
    fn a_connection_takes_the_place_of_another() {
        let (old, _gone) = UnixStream::pair().expect("a pair");
        let (new, mut far) = UnixStream::pair().expect("a pair");
        assert_eq!(peer_user(&old), Some(effective_user()));
        let number = old.as_raw_fd();
        assert!(put_in_place(&old, new));
        far.write_all(b"here").expect("written");
        let mut read = [0; 4];
        (&old).read_exact(&mut read).expect("read");
        assert_eq!((&read, old.as_raw_fd()), (b"here", number));
    }
}
