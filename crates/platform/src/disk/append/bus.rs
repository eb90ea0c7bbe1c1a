//! Turns bus errors into I/O errors. A thread gets a bus error when it reads or writes a mapped page that the kernel
//! cannot provide, because the device or the file system has failed.
//!
//! The action of a signal applies to the whole process, so the owner of the process installs it with
//! [`catch_bus_errors`]: the `leeward` binary does, a library never. Before that, and for addresses outside the watched
//! mappings, the signal does what it did before.
//!
//! ```text
//!  load or store -> SIGBUS -> handler: a fresh page of zeroes in the failed one's place, the mapping is marked
//!                             the load or the store is repeated, on that page
//!  publish       -> the mark is seen: an error, and nothing of it was acknowledged
//! ```
//! The handler may run on any thread, between any two instructions. It takes no lock, allocates nothing and reads only
//! atomics: a list of [`Watch`]es. The list only grows. Its elements are never freed; each serves one mapping after
//! another.

use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, compiler_fence};

/// Head of the list of watches, the newest.
static NEWEST: AtomicPtr<Watch> = AtomicPtr::new(ptr::null_mut());
/// Elements of the list that serve no mapping.
static IDLE: Mutex<Vec<&'static Watch>> = Mutex::new(Vec::new());
/// The action of the signal before the handler was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Set before the handler is installed.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// An element of the list: the range of a mapping, and whether a page of it was lost.
#[derive(Debug)]
struct Watch {
    start: AtomicUsize,
    /// 0: serves no mapping.
    bytes: AtomicUsize,
    has_failed: AtomicBool,
    /// The next older element; set before this one is in the list.
    next: *const Watch,
}

// SAFETY: `next` is written before the element is in the list, and points to one that is never freed.
unsafe impl Sync for Watch {}
// SAFETY: as above.
unsafe impl Send for Watch {}

/// Watches a mapping until this is dropped, which must be before the mapping is unmapped.
#[derive(Debug)]
pub(super) struct Watched(&'static Watch);

impl Watched {
    /// Watches `bytes` bytes from `start` on.
    pub(super) fn new(start: NonNull<u8>, bytes: usize) -> Watched {
        let idle = IDLE.lock().pop();
        let watch = idle.unwrap_or_else(add);
        watch.has_failed.store(false, Ordering::SeqCst);
        watch.start.store(start.as_ptr().addr(), Ordering::SeqCst);
        watch.bytes.store(bytes, Ordering::SeqCst);
        Watched(watch)
    }

    /// Whether no page of the mapping was lost. If so, everything that this thread stored before is in the file.
    #[inline]
    pub(super) fn is_sound(&self) -> bool {
        // The handler runs on the storing thread, between two instructions: only the compiler could move this load up.
        compiler_fence(Ordering::SeqCst);
        !self.0.has_failed.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.bytes.store(0, Ordering::SeqCst);
        IDLE.lock().push(self.0);
    }
}

/// Another element of the list.
fn add() -> &'static Watch {
    let mut newest = NEWEST.load(Ordering::SeqCst);
    loop {
        let (start, bytes, has_failed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let added: &'static mut Watch = Box::leak(Box::new(Watch { start, bytes, has_failed, next: newest }));
        let at: *mut Watch = added;
        match NEWEST.compare_exchange(newest, at, Ordering::SeqCst, Ordering::SeqCst) {
            // SAFETY: it was leaked just now, and no mutable reference to it is left.
            Ok(_) => return unsafe { &*at },
            Err(other) => {
                newest = other;
                // SAFETY: it came from a box, and no other thread has seen it.
                drop(unsafe { Box::from_raw(at) });
            }
        }
    }
}

/// From now on, in this process, a lost page of a mapped file is an I/O error of the append, and no signal. Other bus
/// errors do what they did before. The owner of the process calls this at its start.
///
/// # Errors
/// Those of `sigaction`.
pub fn catch_bus_errors() -> io::Result<()> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock();
    if BEFORE.get().is_some() {
        return Ok(());
    }
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::SeqCst);
    let mut before = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only reads the action, into valid memory.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    let before = unsafe { before.assume_init() };
    // Set before the handler is installed, because the handler reads it.
    BEFORE.get_or_init(|| before);
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
    let mut action = before;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler keeps to what a handler may do, as the module says.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` the signal's information; a code above 0 says that it comes
    // from the kernel, and that the address is valid.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    // SAFETY: the thread's own `errno`, which the call that was interrupted may be about to look at.
    let errno = unsafe { *libc::__errno_location() };
    if !(is_fault && take_over(address)) {
        do_as_before(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// If a watched mapping contains `address`: replaces the page there by zeroes, and marks the watch.
fn take_over(address: usize) -> bool {
    let page_bytes = PAGE_BYTES.load(Ordering::SeqCst);
    let mut is_ours = false;
    let mut at = NEWEST.load(Ordering::SeqCst).cast_const();
    // SAFETY: elements of the list are never freed, and `next` does not change.
    while let Some(watch) = unsafe { at.as_ref() } {
        let (start, bytes) = (watch.start.load(Ordering::SeqCst), watch.bytes.load(Ordering::SeqCst));
        // The element that contains `address` is in use and does not change. Others may get another mapping meanwhile.
        let is_same = watch.start.load(Ordering::SeqCst) == start;
        if is_same && address.checked_sub(start).is_some_and(|offset| offset < bytes) {
            watch.has_failed.store(true, Ordering::SeqCst);
            is_ours = true;
        }
        at = watch.next;
    }
    let page = address - address % page_bytes;
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
    // SAFETY: the page lies in a mapping that begins at a page and stays mapped, because the faulting thread has a
    // reference to its bytes. Other readers see the bytes change, as those of any mapped file that is lost: they are
    // plain bytes, and a reader checks the CRC before it uses them as records.
    is_ours
        && unsafe { rustix::mm::mmap_anonymous(ptr::with_exposed_provenance_mut(page), page_bytes, protection, flags) }
            .is_ok()
}

/// Does what the signal did before the handler was installed.
fn do_as_before(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_IGN | libc::SIG_DFL => {
            // SAFETY: the system returned this action. A faulting instruction is repeated, and ends the process; a sent
            // signal is sent again.
            unsafe {
                libc::sigaction(signal, before, ptr::null_mut());
                libc::raise(signal);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flag says that the handler is of this type.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag it is of this type.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
