//! The runtime's door to Linux, with the fake kernel behind it. `uffd` is the real one: its system
//! calls end in `kernel/uffd.rs`.

pub mod credentials;
pub mod inherit;
pub mod media;
pub mod memory;
pub mod proc;
pub mod readable;
#[path = "../../../src/sys/slot.rs"]
pub mod slot;
pub mod spare;
pub mod stack;
pub mod stop;
pub mod sync;
pub mod thread;
#[path = "../../../src/sys/uffd.rs"]
pub mod uffd;
