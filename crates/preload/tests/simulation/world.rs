//! One seed: a machine, a runtime on it, an application, and the checks at the end.

use crate::app::App;
use crate::copies::Copies;
use crate::hurry::Hurry;
use crate::kernel::{self, Faults, Newest};
use crate::loader::{self, Loads};
use crate::mover::{Mover, RETRY_WINDOWS};
use crate::pager::{doorbell::Doorbell, Pager};
use crate::queue::Queue;
use crate::region::RegionTable;
use crate::runtime::Runtime;
use crate::samples::SampleSlots;
use crate::schedule::{self, Random, Stop, Style};
use crate::stats::Stats;
use crate::stores::Stores;
use crate::sys::stop::Stopper;
use crate::sys::sync::OnlyThread;
use crate::sys::uffd::{feature, Uffd};
use crate::sys::{inherit, memory, proc, thread};
use crate::{agent, checks, forks, options};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, AtomicUsize};
use std::sync::Arc;
use terrace_core::looks::Watching;
use terrace_core::state::{PAGE_BYTES, REGION_BYTES};
use terrace_core::tier::{Codec, MediumKind, Place, Pool};
use terrace_core::wire::{Configure, TierConfig};

/// Steps after which a seed that has not ended hangs. The longest that ends takes a tenth.
const STEPS_MAX: u64 = 2_000_000;

/// What a seed decides before anything runs.
#[derive(Clone, Debug)]
pub struct Setting {
    pub seed: u64,
    pub style: Style,
    pub faults: Faults,
    pub forks_announced: bool,
    pub config: Configure,
    pub is_threaded: bool,
    /// What comes home leaves a copy.
    pub keeps_copies: bool,
    /// How many windows pass at a time: one, or all that a refused page waits for.
    pub window_step: u32,
    pub newest: Newest,
    /// All that goes down goes to the first tier.
    pub has_one_tier: bool,
    pub app_threads: usize,
    pub app_steps: u64,
    pub verbose: bool,
}

impl Setting {
    /// The setting of a seed.
    pub fn of(seed: u64) -> Setting {
        let mut r = Random::new(seed ^ 0x7e44_ace0);
        let (is_kept, mut of_copies) = (options::is_kept(seed), Random::new(seed ^ 0xc091_e500));
        let mut of_kernels = Random::new(seed ^ 0x0510_0600);
        let newest = match (is_kept || !of_kernels.once_in(3), !is_kept && of_kernels.once_in(3)) {
            (false, _) => Newest::Copy,
            (true, false) => Newest::Move,
            (true, true) => Newest::Watch,
        };
        let style = Style {
            call: r.pick(&[1, 1, 2, 4]),
            swap: r.pick(&[1, 2, 8]),
            load: r.pick(&[0, 40, 300, 2000]),
            hold: r.pick(&[0, 0, 20, 100]),
        };
        let mut often = |of: &[u64]| r.pick(of);
        let faults = Faults {
            no_memory: often(&[0, 0, 10, 60]),
            busy: often(&[0, 0, 10, 60]),
            partial: often(&[0, 2, 10]),
            register: often(&[0, 0, 5]),
            spurious: often(&[0, 0, 4, 20]),
            interrupted: often(&[0, 10]),
        };
        let tier = |codec: Codec, pool, medium, pages: u64| TierConfig {
            codec,
            level: codec.default_level(),
            pool,
            medium,
            latency_ns: 0,
            bandwidth_mib_s: 0,
            place: Place { capacity_bytes: pages * PAGE_BYTES as u64, ..Place::default() },
            block_kib: 0,
            // As if what is not DRAM were cheaper.
            cutoff_bytes: if medium == MediumKind::Dram { 2990 } else { 4096 },
        };
        let slow = r.pick(&[MediumKind::File, MediumKind::File, MediumKind::Dram]);
        let config = Configure {
            cutoff_bytes: 2990,
            samples_per_region: r.pick(&[0, 30, 100, 255]),
            cooling_windows: r.pick(&[0, 0, 1, 2]),
            move_threads: r.pick(&[1, 2]),
            move_mib_s: r.pick(&[0, 0, 100]),
            tiers: vec![
                tier(Codec::Lz4, Pool::Zbud, MediumKind::Dram, r.pick(&[4, 256])),
                tier(Codec::Lz4, Pool::Zsmalloc, slow, r.pick(&[8, 256])),
                tier(Codec::Lzo, Pool::Z3fold, MediumKind::Dram, 256),
            ],
            // Movers that give up on their own account, in some seeds.
            torture_seed: r.pick(&[0, 0, 0, seed]),
            note: String::new(),
            watching: r.pick(&[Watching::Ages, Watching::Use]),
        };
        Setting {
            seed,
            style,
            faults,
            forks_announced: !r.once_in(3),
            config,
            is_threaded: !r.once_in(4),
            app_threads: r.pick(&[1, 2, 2, 3]),
            app_steps: r.pick(&[15, 30, 60]),
            // Kept seeds go on to mean what they did.
            keeps_copies: !is_kept && !of_copies.once_in(3),
            window_step: if seed % 4 == 3 && !is_kept { u32::from(RETRY_WINDOWS) } else { 1 },
            newest,
            has_one_tier: !is_kept && of_copies.once_in(2),
            verbose: false,
        }
    }
}

/// A runtime on a new machine: built as the agent builds it.
pub struct World {
    pub rt: &'static Runtime,
    pub queue: Arc<Queue>,
}

impl World {
    /// Builds it; its threads are started, and run with `schedule::run`.
    pub fn build(setting: &Setting) -> World {
        schedule::begin(setting.seed, setting.style, setting.verbose);
        kernel::begin(setting.forks_announced, setting.newest);
        let base = feature::PAGEFAULT_FLAG_WP
            | feature::EVENT_REMAP
            | feature::EVENT_REMOVE
            | feature::EVENT_UNMAP
            | feature::THREAD_ID
            | match setting.newest {
                Newest::Copy => 0,
                Newest::Move => feature::MOVE,
                Newest::Watch => feature::MOVE | feature::WATCH,
            };
        let uffd = Uffd::open(base | feature::EVENT_FORK).or_else(|_| Uffd::open(base));
        let uffd: &'static Uffd = Box::leak(Box::new(uffd.expect("the fake kernel has it")));
        let stores = Stores::build(setting.config.clone(), 1 << 20).expect("tiers");
        let decoders = stores.decoders().expect("decoders");
        let rt: &'static Runtime = Box::leak(Box::new(Runtime {
            uffd,
            table: RegionTable::default(),
            loads: Loads::new(uffd, &stores).expect("loads"),
            stores,
            stats: Stats::default(),
            unreadable: memory::carve_unreadable(REGION_BYTES).expect("memory"),
            stopper: (setting.newest < Newest::Move).then(|| Stopper::new().expect("a stopper")),
            pagemap: proc::Pagemap::open().expect("pagemap"),
            smaps: inherit::Smaps::open().expect("smaps"),
            doorbell: Doorbell::new(uffd).expect("a doorbell"),
            samples: SampleSlots::new(uffd).expect("slots"),
            window: AtomicU32::new(1),
            soon_windows: AtomicU8::new([0, 1, 4][(setting.seed % 3) as usize]),
            paused: AtomicU32::new(0),
            is_threaded: AtomicBool::new(setting.is_threaded),
            copies: Copies::default(),
            pager_cpu: AtomicUsize::new(usize::MAX),
            hurry: Hurry::default(),
        }));
        rt.stores.iter().for_each(|(_, tier)| tier.be_helped(&rt.hurry));
        let pager = Pager::new(rt, uffd, decoders);
        thread::spawn(c"terrace-pager", move || {
            pager.run();
        });
        loader::start(rt);
        // A seed that was ended on purpose leaves forks that never return.
        forks::forget(&OnlyThread::of_new_seed());
        forks::set_up(rt);
        let queue = Arc::new(Queue::default());
        for number in 0..u64::from(rt.stores.config.move_threads) {
            let mover = Mover::new(rt, queue.clone(), number).expect("a mover");
            thread::spawn(c"terrace-mover", move || {
                mover.run();
            });
        }
        rt.copies.want(setting.keeps_copies, 0);
        agent::set_up(Some((rt, queue.clone())));
        World { rt, queue }
    }

    /// Ends all threads and gives back what the runtime took for good.
    pub fn end(self) {
        schedule::end();
        agent::set_up(None);
        let uffd = std::ptr::from_ref(self.rt.uffd).cast_mut();
        for region in self.rt.table.all() {
            // SAFETY: made by `Box::leak` in the table; nobody looks at it any more.
            drop(unsafe { Box::from_raw(std::ptr::from_ref(region).cast_mut()) });
        }
        // SAFETY: made by `Box::leak` in `build`; the threads that used both are gone.
        unsafe {
            drop(Box::from_raw(std::ptr::from_ref(self.rt).cast_mut()));
            drop(Box::from_raw(uffd));
        }
    }
}

/// Runs a seed. The violation, if there is one.
pub fn run(setting: &Setting) -> Result<u64, String> {
    let world = World::build(setting);
    let (rt, queue) = (world.rt, world.queue.clone());
    let of = setting.clone();
    schedule::spawn("main", false, move || {
        App::new(rt, queue, &of).live();
        kernel::set_faults(Faults::default());
        checks::at_the_end(rt);
    });
    let outcome = std::panic::catch_unwind(|| schedule::run(STEPS_MAX));
    let steps = schedule::steps();
    let result = match outcome {
        Ok(Stop::Finished) => schedule::failure().map_or(Ok(steps), Err),
        Ok(Stop::Failed) => Err(schedule::failure().unwrap_or_default()),
        Ok(Stop::Stuck) => Err(format!("hang, nobody can go on: {}", schedule::waiting())),
        Ok(Stop::TooLong) => Err(format!("hang, no end: {}", schedule::waiting())),
        Err(_) => Err("panic".to_string()),
    };
    world.end();
    kernel::begin(false, Newest::Move);
    result
}
