//! A domain of a libfabric provider, and the progress in it. Only this module, `endpoint` (which opens the objects of a
//! domain) and `library` call libfabric; no other module sees its pointers.
//!
//! Every call is made under one lock, even with providers that need none. So no object is closed while the progress
//! thread uses it, and no byte is placed in this process's memory while another thread holds the lock. Nothing blocks
//! under the lock: a thread waits for completions in [`Device::wait`], outside libfabric.
//!
//! Objects are closed in the order that libfabric requires: endpoints and registrations hold their device, and are
//! closed first. Every endpoint has its own completion queue, because in libfabric 1.17 a queue that outlives an
//! endpoint still uses it.
//!
//! A failure at an endpoint ends its connection: a failed operation, or a queue that cannot be read or waited for. The
//! whole device fails when an endpoint cannot be closed, or when the progress thread is gone. Then nothing is opened or
//! started any more.

use super::{Provider, library::Library, sys::*};
use crate::stream::socket::{Waker, wait_for_any};
use leeward_platform::Rng;
use parking_lot::Mutex;
use std::{
    ffi::{CStr, c_int},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tracing::{error, warn};

/// Completions taken at a time.
const BATCH: usize = 64;
/// Completions that a queue has room for. If it is full, providers that cannot grow it let operations wait.
const QUEUE: usize = 1024;
/// Where the shm provider has its memory, and what an endpoint needs of it.
const SHARED_MEMORY: &str = "/dev/shm";
const ENDPOINT_BYTES: u64 = 16 << 20;
/// Longest address of an endpoint, in bytes.
pub(super) const MAX_ADDRESS: usize = 256;

/// A domain of a libfabric provider.
pub(super) struct Device {
    pub(super) library: &'static Library,
    pub(super) info: *mut Info,
    fabric: *mut FidFabric,
    pub(super) domain: *mut FidDomain,
    /// The provider's name, as peers compare it.
    name: String,
    pub(super) mr_mode: c_int,
    /// Whether queues have a descriptor to wait for.
    pub(super) has_descriptors: bool,
    waker: Waker,
    /// The progress thread was not woken since it began its present round.
    unwoken: AtomicBool,
    /// Why it has failed.
    failure: OnceLock<String>,
    /// Locked during every call of libfabric.
    pub(super) calls: Mutex<Calls>,
}

pub(super) struct Calls {
    /// Draws the keys of new registrations.
    pub(super) keys: Rng,
    /// The queues of all endpoints.
    pub(super) queues: Vec<Queue>,
    /// Connections that failed outside of [`Device::progress`].
    failed: Vec<End>,
}

/// The completion queue of one endpoint.
pub(super) struct Queue {
    pub(super) queue: *mut FidCq,
    /// Becomes readable with completions. It is a duplicate, so that it stays valid while a thread waits for it.
    pub(super) ready: Option<Arc<OwnedFd>>,
    /// Number of the endpoint's connection.
    pub(super) connection: u32,
    /// Why the endpoint has failed, shared with its holder.
    pub(super) failure: Arc<OnceLock<String>>,
}

impl Queue {
    fn fail(&self, reason: String) -> End {
        let connection = self.connection;
        warn!(connection, reason, "an endpoint of libfabric has failed");
        // The first reason stands.
        let _ = self.failure.set(reason.clone());
        End { connection, result: Err(reason) }
    }
}

// SAFETY: the objects behind the pointers belong to no thread (FI_THREAD_SAFE was asked for), and all calls on them are
// made under `calls`.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// An operation has ended, or a connection has.
pub(super) struct End {
    /// Number of the connection.
    pub(super) connection: u32,
    /// The token of the operation, or why the connection has failed.
    pub(super) result: Result<u64, String>,
}

impl Device {
    /// Opens the first domain of `provider`. Providers with host addresses take the interface of `host`.
    ///
    /// # Errors
    /// libfabric is not installed, or has no such provider for this host.
    pub(super) fn open(provider: Provider, host: Option<&str>) -> io::Result<Arc<Device>> {
        let library = Library::get()?;
        let mut last = None;
        for (name, has_host) in provider.candidates() {
            match library.offer(name, host.filter(|_| *has_host)) {
                Ok(info) => {
                    // Freed with the device.
                    let device = Device::with_info(library, info)?;
                    library.version.check_provider(device.name()).map_err(io::Error::other)?;
                    device.check_shared_memory()?;
                    return Ok(Arc::new(device));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("there is at least one candidate"))
    }

    fn with_info(library: &'static Library, info: *mut Info) -> io::Result<Device> {
        // SAFETY: `info` is one that `Library::offer` answered, so its attributes are there; the texts in it end with a
        // zero.
        let (name, mr_mode) = unsafe {
            let name = CStr::from_ptr((*(*info).fabric_attr).prov_name).to_string_lossy().into_owned();
            (name, (*(*info).domain_attr).mr_mode)
        };
        // If a later step fails, `drop` closes everything that was opened.
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
            failure: OnceLock::new(),
            calls: Mutex::new(Calls { keys: Rng::from_entropy(), queues: Vec::new(), failed: Vec::new() }),
        };
        let check = |what: &str, answer: c_int| {
            if answer < 0 { Err(library.error(what, answer as isize)) } else { Ok(()) }
        };
        // SAFETY: the calls and their order are those of fi_fabric(3) and fi_domain(3), with attributes of the
        // library's own making; the results are stored where they are closed.
        unsafe {
            let answer = (library.fabric)((*info).fabric_attr, &raw mut device.fabric, ptr::null_mut());
            check("cannot open the fabric", answer)?;
            let domain = (*(*device.fabric).ops).domain;
            check("cannot open the domain", domain(device.fabric, info, &raw mut device.domain, ptr::null_mut()))?;
        }
        // A first queue shows whether queues have descriptors.
        let mut queue = ptr::null_mut();
        if device.open_queue(FI_WAIT_FD, &mut queue) < 0 {
            device.has_descriptors = false;
            check("cannot open a completion queue", device.open_queue(FI_WAIT_NONE, &mut queue))?;
        }
        // SAFETY: just opened, and not used anywhere.
        unsafe { close(library, "a completion queue", &raw mut (*queue).fid) };
        Ok(device)
    }

    /// Opens a completion queue. The lock is held, unless only this thread has the device.
    pub(super) fn open_queue(&self, wait_obj: c_int, queue: &mut *mut FidCq) -> c_int {
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

    /// A duplicate of a queue's descriptor. The lock is held.
    pub(super) fn descriptor(&self, queue: *mut FidCq) -> io::Result<Arc<OwnedFd>> {
        let mut ready: RawFd = -1;
        // SAFETY: a queue that was opened with FI_WAIT_FD answers its descriptor into an int, and keeps it open
        // meanwhile.
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

    /// Whether processes of this host share its memory, in the form of the library's version.
    pub(super) fn shares_memory(&self) -> bool {
        self.name.contains("shm")
    }

    /// An error if an endpoint needs shared memory, and there is none for one more.
    pub(super) fn check_shared_memory(&self) -> io::Result<()> {
        let Ok(room) = rustix::fs::statvfs(SHARED_MEMORY) else { return Ok(()) };
        match self.shares_memory() {
            true => {
                check_room(room.f_bavail.saturating_mul(room.f_frsize), room.f_blocks.saturating_mul(room.f_frsize))
            }
            false => Ok(()),
        }
    }

    /// Whether registered memory is pinned: it occupies all of its pages as long as it is registered.
    pub(super) fn pins_memory(&self) -> bool {
        self.mr_mode & FI_MR_ALLOCATED != 0
    }

    /// Whether an aligned word may be seen half written, because bytes of a stream are placed as they arrive.
    pub(super) fn tears_words(&self) -> bool {
        self.name.contains("tcp")
    }

    /// Flags of reads. The shm provider's fast way of reading leaves a note for the peer, which the peer may process
    /// after this endpoint is closed. So the other way is requested.
    pub(super) fn read_flags(&self) -> u64 {
        FI_COMPLETION | if self.name.contains("shm") { FI_DELIVERY_COMPLETE } else { 0 }
    }

    /// Whether [`Device::wait`] returns by itself when there are completions or incoming data.
    pub(super) fn tells_when_ready(&self) -> bool {
        self.has_descriptors
    }

    /// Most bytes that one operation moves.
    pub(super) fn max_transfer(&self) -> usize {
        // SAFETY: the attributes live as long as `info`, which `drop` frees.
        unsafe { (*(*self.info).ep_attr).max_msg_size }
    }

    /// Makes the progress thread begin another round at once after its present one.
    pub(super) fn wake(&self) {
        if self.unwoken.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }

    /// The progress thread begins a round. It is woken for anything that happens after this.
    pub(super) fn begin_round(&self) {
        self.unwoken.store(true, Ordering::SeqCst);
    }

    /// Makes the device unusable: every connection ends, and nothing is opened or started any more.
    pub(super) fn fail(&self, reason: String) {
        // The first reason stands.
        if self.failure.set(reason.clone()).is_ok() {
            error!(reason, "the libfabric fabric has failed: restart this process");
            self.wake();
        }
    }

    /// Why it has failed, if it has.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// An error if it has failed.
    pub(super) fn check(&self) -> io::Result<()> {
        self.failure().map_or(Ok(()), |reason| Err(io::Error::other(reason.to_owned())))
    }

    /// Makes progress in both directions, and appends the ends of operations and connections. A broken queue is
    /// dropped.
    pub(super) fn progress(&self, ended: &mut Vec<End>) {
        let mut calls = self.calls.lock();
        let Calls { queues, failed, .. } = &mut *calls;
        ended.append(failed);
        queues.retain(|queue| match self.read(queue, ended) {
            Ok(()) => true,
            Err(reason) => {
                ended.push(queue.fail(reason));
                false
            }
        });
    }

    /// Appends the completions of a queue. The lock is held.
    fn read(&self, queue: &Queue, ended: &mut Vec<End>) -> Result<(), String> {
        let mut entries = [CqEntry { op_context: ptr::null_mut() }; BATCH];
        // SAFETY: the queue is open and of the format whose entries these are; there is room for as many as are asked
        // for.
        let answer = unsafe { ((*(*queue.queue).ops).read)(queue.queue, entries.as_mut_ptr().cast(), BATCH) };
        match usize::try_from(answer) {
            Ok(count) => {
                let tokens = entries[..count].iter().map(|entry| entry.op_context.addr() as u64);
                ended.extend(tokens.map(|token| End { connection: queue.connection, result: Ok(token) }));
                Ok(())
            }
            Err(_) if answer == -FI_EAGAIN => Ok(()),
            Err(_) if answer == -FI_EAVAIL => Err(self.take_error(queue.queue)),
            Err(_) => Err(self.library.error("a completion queue is broken", answer).to_string()),
        }
    }

    /// The error of the failed operation that the queue has announced. The lock is held.
    fn take_error(&self, queue: *mut FidCq) -> String {
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
        if answer > 0 {
            self.library.error("an operation failed", entry.err as isize).to_string()
        } else {
            self.library.error("an operation failed, and why cannot be read", answer).to_string()
        }
    }

    /// Waits until there is something to do, it is woken, or `timeout` is over. Returns whether it was woken.
    ///
    /// # Errors
    /// The system cannot wait.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let mut ready = Vec::new();
        if self.has_descriptors {
            let mut calls = self.calls.lock();
            let Calls { queues, failed, .. } = &mut *calls;
            let (mut may_wait, before) = (true, queues.len());
            queues.retain(|queue| match self.may_wait(queue) {
                Ok(one_may) => {
                    may_wait &= one_may;
                    ready.extend(queue.ready.clone());
                    true
                }
                Err(reason) => {
                    failed.push(queue.fail(reason));
                    false
                }
            });
            if !may_wait || queues.len() < before {
                return Ok(false);
            }
        }
        let descriptors: Vec<_> = ready.iter().map(|descriptor| descriptor.as_fd()).collect();
        wait_for_any(&descriptors, &self.waker, timeout)
    }

    /// Whether the queue's descriptor becomes readable with the next event, so that waiting is safe. The lock is held.
    fn may_wait(&self, queue: &Queue) -> Result<bool, String> {
        // SAFETY: fabric and queue are open; the one pointer is read during the call only.
        let answer = unsafe {
            let mut fid = &raw mut (*queue.queue).fid;
            ((*(*self.fabric).ops).trywait)(self.fabric, &raw mut fid, 1) as isize
        };
        match answer {
            0 => Ok(true),
            answer if answer == -FI_EAGAIN => Ok(false),
            answer => Err(self.library.error("a completion queue cannot be waited for", answer).to_string()),
        }
    }
}

/// An error if an endpoint of the shm provider does not find its memory, of which there is this much free. Without it,
/// the first use of the missing pages kills the process.
fn check_room(free: u64, total: u64) -> io::Result<()> {
    if free >= ENDPOINT_BYTES {
        return Ok(());
    }
    let why = format!(
        "{SHARED_MEMORY} has {} MiB of {} MiB free, and libfabric's provider shm needs {} MiB for each end of a link: make \
         it larger (mount -o remount,size=1G {SHARED_MEMORY}; docker run --shm-size=1g)",
        free >> 20,
        total >> 20,
        ENDPOINT_BYTES >> 20
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, why))
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever is not null was opened and is closed once, what was opened last first; endpoints and
        // registrations hold the device, so none is left. `info` came from the library and nothing else frees it.
        unsafe {
            if !self.domain.is_null() {
                close(self.library, "a domain", &raw mut (*self.domain).fid);
            }
            if !self.fabric.is_null() {
                close(self.library, "a fabric", &raw mut (*self.fabric).fid);
            }
            (self.library.freeinfo)(self.info);
        }
    }
}

/// Closes an object. Returns false, with a warning, if it cannot be closed and stays open.
///
/// # Safety
/// The object is open, is not used by any other thread, and is not used again.
pub(super) unsafe fn close(library: &Library, what: &str, fid: *mut Fid) -> bool {
    // SAFETY: the caller ensures it.
    let answer = unsafe { ((*(*fid).ops).close)(fid) };
    if answer < 0 {
        warn!(error = %library.error("cannot close", answer as isize), "{what} stays open");
    }
    answer >= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_that_is_too_small_is_an_error_that_says_how_much_there_is() {
        assert!(check_room(16 << 20, 64 << 20).is_ok());
        let error = check_room((16 << 20) - 1, 64 << 20).expect_err("it is too small").to_string();
        for part in ["/dev/shm has 15 MiB of 64 MiB", "needs 16 MiB", "--shm-size"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
