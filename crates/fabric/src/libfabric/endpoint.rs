//! The objects of a device: registered memory, and endpoints that exchange bytes with one peer each. The rules of
//! `device` apply: every call of libfabric is made under the device's lock, and nothing blocks there.
//!
//! An endpoint is closed before the memory of its operations is given back. If the provider does not close an endpoint,
//! the endpoint may still use that memory: then the device has failed, and its registered memory is never unmapped.

use super::{
    device::{Device, MAX_ADDRESS, Queue, close},
    sys::*,
};
use crate::{memory::Permission, shm::mapping::Mapping};
use std::{
    ffi::{c_int, c_void},
    io,
    ops::Range,
    ptr,
    sync::{Arc, OnceLock},
};

/// Memory that the provider may use: for peers, or as the local end of this process's operations.
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
    /// Registers all of `memory` for peers. The owner must drop it only when no peer uses it any more.
    ///
    /// # Errors
    /// The provider has no more regions, or may not lock so much memory.
    pub(super) fn for_peers(
        device: &Arc<Device>,
        memory: Arc<Mapping>,
        permission: Permission,
    ) -> io::Result<Registration> {
        let access = match permission {
            Permission::ReadWrite => FI_REMOTE_READ | FI_REMOTE_WRITE,
            Permission::ReadOnly => FI_REMOTE_READ,
        };
        Registration::new(device, memory, access)
    }

    fn new(device: &Arc<Device>, memory: Arc<Mapping>, access: u64) -> io::Result<Registration> {
        let (start, len) = (memory.words().as_ptr(), size_of_val(memory.words()));
        let mut calls = device.calls.lock();
        device.check()?;
        loop {
            // SAFETY: the attributes live as long as `info`.
            let key_bytes = unsafe { (*(*device.info).domain_attr).mr_key_size };
            let key = calls.keys.u64() >> (64 - 8 * key_bytes);
            let mut region = ptr::null_mut();
            // SAFETY: the domain is open, and the memory is mapped until after the region is closed. It is shared
            // memory of atomic words, so that others may write it at any time.
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

    /// The key, and the address of the first byte, that peers use for the memory.
    pub(super) fn remote(&self) -> (u64, u64) {
        // SAFETY: the region is open; its key does not change.
        let key = unsafe { (*self.region).key };
        let by_address = self.device.mr_mode & FI_MR_VIRT_ADDR != 0;
        (key, if by_address { self.memory.words().as_ptr().addr() as u64 } else { 0 })
    }

    pub(super) fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let device = &self.device;
        let calls = device.calls.lock();
        // SAFETY: the region was opened by `new` and is closed once. Nothing writes there any more: near ends belong to
        // an endpoint, which is closed first, and what peers were granted is kept until they have given it back or
        // their endpoint is closed. One that gives it back and writes all the same is a broken process of our own
        // cluster.
        let is_closed = device.failure().is_none()
            && unsafe { close(device.library, "registered memory", &raw mut (*self.region).fid) };
        drop(calls);
        if !is_closed {
            // The provider may still use it, so it stays mapped.
            std::mem::forget(Arc::clone(&self.memory));
            std::mem::forget(Arc::clone(device));
            device.fail("registered memory cannot be given back".into());
        }
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    /// To the peer.
    Write,
    /// From the peer.
    Read,
}

/// An endpoint to exchange bytes with one peer. Once it is dropped, no byte of that peer's operations lands here, and
/// none of this process's operations leaves.
pub(super) struct Endpoint {
    endpoint: *mut FidEp,
    addresses: *mut FidAv,
    queue: *mut FidCq,
    /// Why it has failed.
    failure: Arc<OnceLock<String>>,
    device: Arc<Device>,
}

// SAFETY: the objects belong to no thread, and all calls on them are made under the device's lock.
unsafe impl Send for Endpoint {}
// SAFETY: as above.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    /// Opens an endpoint for the connection with this number. It takes long, because providers allocate memory for
    /// their queues.
    ///
    /// # Errors
    /// The provider, or the system, has no endpoints left.
    pub(super) fn open(device: &Arc<Device>, connection: u32) -> io::Result<Endpoint> {
        let null = ptr::null_mut();
        let (endpoint, addresses, queue) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // If a later step fails, `drop` closes everything that was opened, after the lock is released.
        let (failure, device_of) = (Arc::default(), Arc::clone(device));
        let mut opened = Endpoint { endpoint, addresses, queue, failure, device: device_of };
        let mut attributes =
            AvAttr { kind: 0, rx_ctx_bits: 0, count: 1, ep_per_node: 0, name: ptr::null(), map_addr: null, flags: 0 };
        let check = |answer: c_int| {
            if answer < 0 { Err(device.library.error("cannot open an endpoint", answer as isize)) } else { Ok(()) }
        };
        device.check_shared_memory()?;
        let mut calls = device.calls.lock();
        device.check()?;
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
        let failure = Arc::clone(&opened.failure);
        calls.queues.push(Queue { queue: opened.queue, ready, connection, failure });
        drop(calls);
        // The sleeping progress thread does not know the new queue's descriptor.
        device.wake();
        Ok(opened)
    }

    /// An error if it has failed.
    pub(super) fn check(&self) -> io::Result<()> {
        self.device.check()?;
        self.failure.get().map_or(Ok(()), |reason| Err(io::Error::other(reason.clone())))
    }

    /// Its address, in the provider's own form.
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
        let library = self.device.library;
        // SAFETY: whatever is not null was opened by `open` and is closed once, the endpoint before what it is bound
        // to, which stays if the endpoint does; the thread that makes progress has no use for the queue any more.
        let is_closed = unsafe {
            let is_closed = self.endpoint.is_null() || close(library, "an endpoint", &raw mut (*self.endpoint).fid);
            if is_closed && !self.addresses.is_null() {
                close(library, "an address vector", &raw mut (*self.addresses).fid);
            }
            if is_closed && !self.queue.is_null() {
                close(library, "a completion queue", &raw mut (*self.queue).fid);
            }
            is_closed
        };
        if !is_closed {
            // Under the lock, so that no memory that it may use is given back from now on.
            std::mem::forget(Arc::clone(&self.device));
            self.device.fail("an endpoint cannot be closed".into());
        }
        drop(calls);
    }
}

/// An endpoint that writes and reads one peer's memory. The local end of every operation is a part of its staging
/// memory.
pub(super) struct Initiator {
    /// Closed before the staging memory is given back.
    endpoint: Endpoint,
    staging: Registration,
    /// The peer's endpoint, in the address vector.
    peer: u64,
}

impl Initiator {
    /// Opens an endpoint towards the one at `address` for the connection with this number. `staging` is the local end
    /// of its operations.
    ///
    /// # Errors
    /// As for [`Endpoint::open`] and [`Registration::for_peers`]; or the address is not one of this provider's.
    pub(super) fn open(
        device: &Arc<Device>,
        connection: u32,
        staging: Arc<Mapping>,
        address: &[u8],
    ) -> io::Result<Initiator> {
        let staging = Registration::new(device, staging, FI_READ | FI_WRITE)?;
        let endpoint = Endpoint::open(device, connection)?;
        // An address has no length of its own, so it is padded with zeroes for reads beyond its end.
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

    /// The local end of its operations.
    pub(super) fn staging(&self) -> &Mapping {
        self.staging.memory()
    }

    /// Starts to move the bytes between `near`, a part of the staging memory, and an address and key of the peer's
    /// memory. The completion with `token` tells that they are placed. Returns false if the provider cannot start it
    /// now.
    ///
    /// # Errors
    /// The operation cannot be started, or the endpoint has failed.
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
        self.endpoint.check()?;
        // SAFETY: the endpoint is open, and so is the staging memory's region. The message is read during the call
        // only. The bytes are mapped until the endpoint is closed; the context is a number that is never followed as a
        // pointer.
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
                // The flag is set on each operation, because some providers ignore it as an endpoint's default. Without
                // it a completion may come for bytes that never arrive.
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

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
