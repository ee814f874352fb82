//! The runtime's door to Linux, with the fake kernel behind it. `uffd` and `messages` are the real
//! ones: their system calls end in `kernel/uffd.rs`.

pub mod credentials;
pub mod inherit;
pub mod media;
pub mod memory;
#[path = "../../../src/sys/messages.rs"]
pub mod messages;
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
