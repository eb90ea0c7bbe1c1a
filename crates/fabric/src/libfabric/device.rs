//! A domain of a libfabric provider, and what is opened in it: with `library` the only module that calls libfabric, and no
//! other sees a pointer of it.
//!
//! Every call is made under one lock, also of providers that need none: so nothing is closed while the thread that makes
//! progress is inside of it, and no byte is placed in this process's memory while the lock is held by another. Nothing
//! blocks under the lock: who waits for completions does so in [`Device::wait`], outside of libfabric.
//!
//! Objects are closed in the order libfabric asks for: endpoints and registrations hold their device, and go first. Every endpoint has
//! a completion queue of its own, since a queue that outlives an endpoint of libfabric 1.17 keeps looking at it.

use super::{Provider, library::Library, sys::*};
use crate::{
    shm::mapping::Mapping,
    stream::socket::{Waker, wait_for_any},
};
use leeward_platform::Rng;
use parking_lot::Mutex;
use std::{
    ffi::{CStr, c_int, c_void},
    io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tracing::warn;

/// Completions taken at a time.
const BATCH: usize = 64;
/// Completions that a queue has room for: providers that cannot grow it make operations wait instead.
const QUEUE: usize = 1024;
/// Longest address of an endpoint, in bytes.
const MAX_ADDRESS: usize = 256;

/// See the module.
pub(super) struct Device {
    library: &'static Library,
    info: *mut Info,
    fabric: *mut FidFabric,
    domain: *mut FidDomain,
    /// The provider's name, as peers compare it.
    name: String,
    mr_mode: c_int,
    /// Whether queues have a descriptor to wait for.
    has_descriptors: bool,
    waker: Waker,
    /// The thread that makes progress was not woken since it began its present round.
    unwoken: AtomicBool,
    /// Held during every call.
    calls: Mutex<Calls>,
}

struct Calls {
    /// Of the keys of new registrations.
    keys: Rng,
    /// The queues of all endpoints.
    queues: Vec<Queue>,
}

/// The completion queue of one endpoint.
#[derive(Clone)]
struct Queue {
    queue: *mut FidCq,
    /// Becomes readable with completions; a duplicate, so that it is one as long as somebody waits for it.
    ready: Option<Arc<OwnedFd>>,
}

// SAFETY: the objects behind the pointers belong to no thread (FI_THREAD_SAFE was asked for), and all calls on them are made
// under `calls`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The end of an operation that was started with this token.
pub(super) struct Completion {
    pub(super) token: u64,
    /// Why it failed.
    pub(super) result: Result<(), String>,
}

impl Device {
    /// Opens the first domain of `provider`; those that have addresses of hosts take the interface of `host`.
    ///
    /// # Errors
    /// libfabric is not installed, or has no such provider for this host.
    pub(super) fn open(provider: Provider, host: Option<&str>) -> io::Result<Arc<Device>> {
        let library = Library::get()?;
        let mut last = None;
        for (name, has_host) in provider.candidates() {
            match library.offer(name, host.filter(|_| *has_host)) {
                Ok(info) => return Device::with_info(library, info).map(Arc::new),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one candidate"))
    }

    fn with_info(library: &'static Library, info: *mut Info) -> io::Result<Device> {
        // SAFETY: `info` is one that `Library::offer` answered, so its attributes are there; the texts in it end with a zero.
        let (name, mr_mode) = unsafe {
            let name = CStr::from_ptr((*(*info).fabric_attr).prov_name).to_string_lossy().into_owned();
            (name, (*(*info).domain_attr).mr_mode)
        };
        // Whatever was opened is closed by `drop` if a later step fails.
        let mut device = Device {
            library,
            info,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            name,
            mr_mode,
            has_descriptors: true,
            waker: Waker::new()?,
            unwoken: AtomicBool::new(true),
            calls: Mutex::new(Calls { keys: Rng::from_entropy(), queues: Vec::new() }),
        };
        let check = |what: &str, answer: c_int| {
            if answer < 0 { Err(library.error(what, answer as isize)) } else { Ok(()) }
        };
        // SAFETY: the calls and their order are those of fi_fabric(3) and fi_domain(3), with attributes of the library's own making;
        // the results are stored where they are closed.
        unsafe {
            let answer = (library.fabric)((*info).fabric_attr, &raw mut device.fabric, ptr::null_mut());
            check("cannot open the fabric", answer)?;
            let domain = (*(*device.fabric).ops).domain;
            check("cannot open the domain", domain(device.fabric, info, &raw mut device.domain, ptr::null_mut()))?;
        }
        // A first queue shows whether they have descriptors.
        let mut queue = ptr::null_mut();
        if device.open_queue(FI_WAIT_FD, &mut queue) < 0 {
            device.has_descriptors = false;
            check("cannot open a completion queue", device.open_queue(FI_WAIT_NONE, &mut queue))?;
        }
        // SAFETY: just opened, and used by nobody.
        unsafe { close(library, "completion queue", &raw mut (*queue).fid) };
        Ok(device)
    }

    fn open_queue(&self, wait_obj: c_int, queue: &mut *mut FidCq) -> c_int {
        let mut attributes = CqAttr {
            size: QUEUE,
            flags: 0,
            format: FI_CQ_FORMAT_CONTEXT,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: ptr::null_mut(),
        };
        // SAFETY: the domain is open; the attributes are read during the call only.
        unsafe { ((*(*self.domain).ops).cq_open)(self.domain, &raw mut attributes, queue, ptr::null_mut()) }
    }

    /// A duplicate of a queue's descriptor.
    fn descriptor(&self, queue: *mut FidCq) -> io::Result<Arc<OwnedFd>> {
        let mut ready: RawFd = -1;
        // SAFETY: a queue that was opened with FI_WAIT_FD answers its descriptor into an int, and keeps it open meanwhile.
        unsafe {
            let answer = ((*(*queue).fid.ops).control)(&raw mut (*queue).fid, FI_GETWAIT, (&raw mut ready).cast());
            if answer < 0 {
                return Err(self.library.error("a completion queue has nothing to wait for", answer as isize));
            }
            BorrowedFd::borrow_raw(ready).try_clone_to_owned().map(Arc::new)
        }
    }

    /// The provider, by libfabric's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether registered memory is taken whole, and for as long as it is registered.
    pub(super) fn pins_memory(&self) -> bool {
        self.mr_mode & FI_MR_ALLOCATED != 0
    }

    /// Whether an aligned word may be seen half written: what comes in over a stream is placed as its pieces come.
    pub(super) fn tears_words(&self) -> bool {
        self.name.contains("tcp")
    }

    /// How reads are posted. The shm provider has a quick way of reading that leaves a note for the peer behind, which the peer would
    /// take up after our endpoint is closed: it is asked for the other way.
    fn read_flags(&self) -> u64 {
        FI_COMPLETION | if self.name.contains("shm") { FI_DELIVERY_COMPLETE } else { 0 }
    }

    /// Whether [`Device::wait`] ends by itself when there are completions or something has come in.
    pub(super) fn tells_when_ready(&self) -> bool {
        self.has_descriptors
    }

    /// Most bytes that one operation moves.
    pub(super) fn max_transfer(&self) -> usize {
        // SAFETY: the attributes live as long as `info`, which `drop` frees.
        unsafe { (*(*self.info).ep_attr).max_msg_size }
    }

    /// Has the thread that makes progress begin another round at once after its present one.
    pub(super) fn wake(&self) {
        if self.unwoken.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// The thread that makes progress begins a round: what it does not see from here on, it is woken for.
    pub(super) fn begin_round(&self) {
        self.unwoken.store(true, Ordering::SeqCst);
    }

    /// Makes progress, in both directions, and appends what has ended. A queue that is broken is not looked at again: nothing more of its
    /// endpoint ends, which its link notices.
    pub(super) fn progress(&self, ended: &mut Vec<Completion>) {
        self.calls.lock().queues.retain(|Queue { queue, .. }| {
            let mut entries = [CqEntry { op_context: ptr::null_mut() }; BATCH];
            // SAFETY: the queue is open and of the format whose entries these are; there is room for as many as are asked for.
            let answer = unsafe { ((*(**queue).ops).read)(*queue, entries.as_mut_ptr().cast(), BATCH) };
            match usize::try_from(answer) {
                Ok(count) => {
                    let tokens = entries[..count].iter().map(|entry| entry.op_context.addr() as u64);
                    ended.extend(tokens.map(|token| Completion { token, result: Ok(()) }));
                }
                Err(_) if answer == -FI_EAGAIN => {}
                Err(_) if answer == -FI_EAVAIL => ended.extend(self.take_error(*queue)),
                Err(_) => {
                    warn!(error = %self.library.error("cannot read", answer), "a completion queue is broken");
                    return false;
                }
            }
            true
        });
    }

    /// Takes the failed operation that the queue has announced. The lock is held.
    fn take_error(&self, queue: *mut FidCq) -> Option<Completion> {
        let mut entry = CqErrEntry {
            op_context: ptr::null_mut(),
            flags: 0,
            len: 0,
            buf: ptr::null_mut(),
            data: 0,
            tag: 0,
            olen: 0,
            err: 0,
            prov_errno: 0,
            err_data: ptr::null_mut(),
            err_data_size: 0,
            later: [0; 6],
        };
        // SAFETY: the queue is open; the entry is as large as that of any version so far, and asks for no further data.
        let answer = unsafe { ((*(*queue).ops).readerr)(queue, &raw mut entry, 0) };
        let reason = self.library.error("an operation failed", entry.err as isize).to_string();
        (answer > 0).then(|| Completion { token: entry.op_context.addr() as u64, result: Err(reason) })
    }

    /// Waits until there is something to do, it is woken, or `timeout` is over.
    ///
    /// # Errors
    /// The system cannot wait.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        let mut ready = Vec::new();
        if self.has_descriptors {
            let calls = self.calls.lock();
            for Queue { queue, ready: descriptor } in &calls.queues {
                // SAFETY: fabric and queue are open; the one pointer is read during the call only.
                let may_wait = unsafe {
                    let mut fid = &raw mut (**queue).fid;
                    ((*(*self.fabric).ops).trywait)(self.fabric, &raw mut fid, 1) == 0
                };
                if !may_wait {
                    return Ok(());
                }
                ready.extend(descriptor.clone());
            }
        }
        let descriptors: Vec<_> = ready.iter().map(|descriptor| descriptor.as_fd()).collect();
        wait_for_any(&descriptors, &self.waker, timeout)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever is not null was opened and is closed once, what was opened last first; endpoints and registrations
        // hold the device, so none is left. `info` came from the library and nobody else frees it.
        unsafe {
            if !self.domain.is_null() {
                close(self.library, "domain", &raw mut (*self.domain).fid);
            }
            if !self.fabric.is_null() {
                close(self.library, "fabric", &raw mut (*self.fabric).fid);
            }
            (self.library.freeinfo)(self.info);
        }
    }
}

/// Closes an object; what cannot be closed is left, which is said.
///
/// # Safety
/// The object is open, is used by nobody else, and is not used again.
unsafe fn close(library: &Library, what: &str, fid: *mut Fid) {
    // SAFETY: whoever calls has seen to it.
    let answer = unsafe { ((*(*fid).ops).close)(fid) };
    if answer < 0 {
        warn!(error = %library.error("cannot close", answer as isize), "a {what} stays open");
    }
}

/// Memory that the provider may read and write: for peers, or as the near end of operations of our own.
pub(super) struct Registration {
    region: *mut FidMr,
    device: Arc<Device>,
    /// Unmapped after the region is closed.
    memory: Arc<Mapping>,
}

// SAFETY: the region belongs to no thread; it is closed under the device's lock, and only read before.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers all of `memory` for peers. Whoever grants it to them drops it only when none of them writes it any more.
    ///
    /// # Errors
    /// The provider has no more regions, or may not lock so much memory.
    pub(super) fn for_peers(device: &Arc<Device>, memory: Arc<Mapping>) -> io::Result<Registration> {
        Registration::new(device, memory, FI_REMOTE_READ | FI_REMOTE_WRITE)
    }

    fn new(device: &Arc<Device>, memory: Arc<Mapping>, access: u64) -> io::Result<Registration> {
        let (start, len) = (memory.words().as_ptr(), size_of_val(memory.words()));
        let mut calls = device.calls.lock();
        loop {
            // SAFETY: the attributes live as long as `info`.
            let key_bytes = unsafe { (*(*device.info).domain_attr).mr_key_size };
            let key = calls.keys.u64() >> (64 - 8 * key_bytes);
            let mut region = ptr::null_mut();
            // SAFETY: the domain is open, and the memory is mapped until after the region is closed. It is shared memory of atomic words,
            // so that others may write it at any time.
            let answer = unsafe {
                let domain = device.domain;
                let register = (*(*domain).mr).reg;
                let (region, context) = (&raw mut region, ptr::null_mut());
                register(&raw mut (*domain).fid, start.cast(), len, access, 0, key, 0, region, context)
            };
            match answer as isize {
                0 => {
                    drop(calls);
                    return Ok(Registration { region, device: Arc::clone(device), memory });
                }
                answer if answer == -FI_ENOKEY => {}
                answer => {
                    let advice =
                        if device.pins_memory() { " (a card locks it: `ulimit -l` must allow for it)" } else { "" };
                    return Err(device
                        .library
                        .error(&format!("cannot register {len} bytes of memory{advice}"), answer));
                }
            }
        }
    }

    /// The key and the address of the first byte by which peers reach the memory.
    pub(super) fn remote(&self) -> (u64, u64) {
        // SAFETY: the region is open; its key does not change.
        let key = unsafe { (*self.region).key };
        let by_address = self.device.mr_mode & FI_MR_VIRT_ADDR != 0;
        (key, if by_address { self.memory.words().as_ptr().addr() as u64 } else { 0 })
    }

    /// The memory.
    pub(super) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _calls = self.device.calls.lock();
        // SAFETY: the region was opened by `new` and is closed once. Nobody writes there any more: near ends belong to an endpoint,
        // which is closed first, and what peers were granted is kept until they have given it back or their endpoint is closed.
        // One that gives it back and writes all the same is a broken process of our own cluster.
        unsafe { close(self.device.library, "registered memory", &raw mut (*self.region).fid) };
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To the peer.
    Write,
    /// From the peer.
    Read,
}

/// An endpoint to exchange bytes with one peer. Once it is dropped no byte of that peer's operations lands here, and none of
/// ours leaves.
pub(super) struct Endpoint {
    endpoint: *mut FidEp,
    addresses: *mut FidAv,
    queue: *mut FidCq,
    device: Arc<Device>,
}

// SAFETY: the objects belong to no thread, and all calls on them are made under the device's lock.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    /// Opens one.
    ///
    /// # Errors
    /// The provider, or the system, has no more.
    pub(super) fn open(device: &Arc<Device>) -> io::Result<Endpoint> {
        let null = ptr::null_mut();
        let (endpoint, addresses, queue) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // What was opened when a later step fails is closed by `drop`, after the lock is given back.
        let mut opened = Endpoint { endpoint, addresses, queue, device: Arc::clone(device) };
        let mut attributes =
            AvAttr { kind: 0, rx_ctx_bits: 0, count: 1, ep_per_node: 0, name: ptr::null(), map_addr: null, flags: 0 };
        let check = |answer: c_int| {
            if answer < 0 { Err(device.library.error("cannot open an endpoint", answer as isize)) } else { Ok(()) }
        };
        let mut calls = device.calls.lock();
        let wait_obj = if device.has_descriptors { FI_WAIT_FD } else { FI_WAIT_NONE };
        check(device.open_queue(wait_obj, &mut opened.queue))?;
        // SAFETY: the calls and their order are those of fi_endpoint(3), on objects that are open.
        unsafe {
            let domain = device.domain;
            check(((*(*domain).ops).av_open)(domain, &raw mut attributes, &raw mut opened.addresses, null))?;
            check(((*(*domain).ops).endpoint)(domain, device.info, &raw mut opened.endpoint, null))?;
            let fid = &raw mut (*opened.endpoint).fid;
            let ops = (*fid).ops;
            check(((*ops).bind)(fid, &raw mut (*opened.addresses).fid, 0))?;
            check(((*ops).bind)(fid, &raw mut (*opened.queue).fid, FI_TRANSMIT | FI_RECV))?;
            check(((*ops).control)(fid, FI_ENABLE, null))?;
        }
        let ready = if device.has_descriptors { Some(device.descriptor(opened.queue)?) } else { None };
        calls.queues.push(Queue { queue: opened.queue, ready });
        drop(calls);
        // Who sleeps does not know the new queue's descriptor.
        device.wake();
        Ok(opened)
    }

    /// Where peers reach it, in the provider's own form.
    pub(super) fn address(&self) -> io::Result<Vec<u8>> {
        let mut address = vec![0; MAX_ADDRESS];
        let mut len = address.len();
        let _calls = self.device.calls.lock();
        // SAFETY: the endpoint is open; at most `len` bytes are written, and `len` is set to how many there are.
        let answer = unsafe {
            let cm = (*self.endpoint).cm;
            ((*cm).getname)(&raw mut (*self.endpoint).fid, address.as_mut_ptr().cast(), &raw mut len)
        };
        if answer < 0 {
            return Err(self.device.library.error("an endpoint has no address", answer as isize));
        }
        address.truncate(len);
        Ok(address)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mut calls = self.device.calls.lock();
        calls.queues.retain(|other| other.queue != self.queue);
        // SAFETY: whatever is not null was opened by `open` and is closed once, the endpoint before what it is bound to; the thread that
        // makes progress has no use for the queue any more.
        unsafe {
            let library = self.device.library;
            if !self.endpoint.is_null() {
                close(library, "endpoint", &raw mut (*self.endpoint).fid);
            }
            if !self.addresses.is_null() {
                close(library, "address vector", &raw mut (*self.addresses).fid);
            }
            if !self.queue.is_null() {
                close(library, "completion queue", &raw mut (*self.queue).fid);
            }
        }
    }
}

/// An endpoint that writes and reads one peer's memory; the near end of every operation is a part of its staging memory.
pub(super) struct Initiator {
    /// Closed before the staging memory is given back.
    endpoint: Endpoint,
    staging: Registration,
    /// The peer's endpoint, in the address vector.
    peer: u64,
}

impl Initiator {
    /// Opens an endpoint towards the one at `address`; `staging` is the near end of its operations.
    ///
    /// # Errors
    /// As for [`Endpoint::open`] and [`Registration::for_peers`]; or the address is none of this provider's.
    pub(super) fn open(device: &Arc<Device>, staging: Arc<Mapping>, address: &[u8]) -> io::Result<Initiator> {
        let staging = Registration::new(device, staging, FI_READ | FI_WRITE)?;
        let endpoint = Endpoint::open(device)?;
        // An address has no length of its own: what the provider may look at beyond its end is there, and zero.
        let mut padded = [0; MAX_ADDRESS];
        let whole = padded.get_mut(..address.len()).ok_or(io::ErrorKind::InvalidData)?;
        whole.copy_from_slice(address);
        let mut peer = u64::MAX;
        // SAFETY: the address vector is open; the address is read, and its number written, during the call only.
        let answer = unsafe {
            let _calls = device.calls.lock();
            let (addresses, null) = (endpoint.addresses, ptr::null_mut());
            ((*(*addresses).ops).insert)(addresses, padded.as_ptr().cast(), 1, &raw mut peer, 0, null)
        };
        if answer != 1 {
            return Err(device.library.error("the peer's address is not understood", answer.min(0) as isize));
        }
        Ok(Initiator { endpoint, staging, peer })
    }

    /// The near end of its operations.
    pub(super) fn staging(&self) -> &Mapping {
        self.staging.memory()
    }

    /// Starts to move the bytes between `near`, a part of the staging memory, and `far`, an address and a key of the peer's. The
    /// completion with `token` tells that they are placed. False: not now.
    ///
    /// # Errors
    /// The operation cannot be started; nothing more comes of it.
    pub(super) fn transfer(
        &self,
        direction: Direction,
        near: Range<usize>,
        (address, key): (u64, u64),
        token: u64,
    ) -> io::Result<bool> {
        let staging = self.staging();
        assert!(
            near.start <= near.end && near.end <= size_of_val(staging.words()),
            "{near:?} is in the staging memory"
        );
        let device = &self.endpoint.device;
        let endpoint = self.endpoint.endpoint;
        let start = staging.words().as_ptr().cast::<u8>().wrapping_add(near.start);
        let iov = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: near.len() };
        let remote = RmaIov { addr: address, len: near.len(), key };
        let _calls = device.calls.lock();
        // SAFETY: the endpoint is open, and so is the staging memory's region. The message is read during the call only. The
        // bytes are mapped until the endpoint is closed; the context is a number that nobody follows.
        let answer = unsafe {
            let mut descriptor = (*self.staging.region).mem_desc;
            let message = MsgRma {
                msg_iov: &raw const iov,
                desc: &raw mut descriptor,
                iov_count: 1,
                addr: self.peer,
                rma_iov: &raw const remote,
                rma_iov_count: 1,
                context: ptr::without_provenance_mut::<c_void>(token as usize),
                data: 0,
            };
            match direction {
                // For each operation, since some providers ignore it as an endpoint's default: without it a completion
                // may come for bytes that never arrive.
                Direction::Write => {
                    ((*(*endpoint).rma).writemsg)(endpoint, &raw const message, FI_DELIVERY_COMPLETE | FI_COMPLETION)
                }
                Direction::Read => ((*(*endpoint).rma).readmsg)(endpoint, &raw const message, device.read_flags()),
            }
        };
        match answer {
            0 => Ok(true),
            answer if answer == -FI_EAGAIN => Ok(false),
            answer => Err(device.library.error("an operation cannot be started", answer)),
        }
    }
}
