//! The libfabric library, opened at run time, and the offers of its providers. A process that does not use libfabric
//! does not need it.
//!
//! Seven exported functions are used, each by the version of its symbol for which `sys` was written. Everything else is
//! reached through the objects that they return. The library stays open until the process ends, because its providers
//! have threads and hooks of their own.

use super::{sys::*, version::Version};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    mem::transmute,
    ptr,
    sync::OnceLock,
};

/// Modes of registration that are handled here. A provider chooses those that it needs.
const MR_MODES: c_int = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
/// Name under which every version from 1.0 on is installed.
const NAME: &CStr = c"libfabric.so.1";

type GetInfo = unsafe extern "C" fn(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    info: *mut *mut Info,
) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut Info);
type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type GetVersion = unsafe extern "C" fn() -> u32;
type ToStr = unsafe extern "C" fn(*const c_void, c_int) -> *const c_char;

/// The functions of libfabric that are used.
pub(super) struct Library {
    pub(super) getinfo: GetInfo,
    pub(super) freeinfo: FreeInfo,
    pub(super) dupinfo: DupInfo,
    pub(super) fabric: OpenFabric,
    strerror: StrError,
    pub(super) version: Version,
}

impl Library {
    /// The library. The first call opens it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]: it is not installed, or is too old. The text says what to do.
    pub(super) fn get() -> io::Result<&'static Library> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY
            .get_or_init(|| Library::open(NAME))
            .as_ref()
            .map_err(|error| io::Error::new(io::ErrorKind::NotFound, error.clone()))
    }

    fn open(name: &CStr) -> Result<Library, String> {
        // SAFETY: `name` ends with a zero. Loading the library runs only its own constructors, which may run at any
        // time.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!(
                "libfabric cannot be opened ({}): install it (Debian, Ubuntu: apt install libfabric1; Fedora, RHEL: \
                 dnf install libfabric), or use another fabric",
                last_error()
            ));
        }
        let find = |name, version| {
            let found = symbol(library, name, version);
            if found.is_null() {
                let name = name.to_string_lossy();
                return Err(format!("{name} is not in this libfabric ({}): install 1.17 or later", last_error()));
            }
            Ok(found)
        };
        let version = version(find(c"fi_version", c"FABRIC_1.0")?, find(c"fi_tostr", c"FABRIC_1.0")?);
        // Before it is asked for anything: an older one says only that something is not implemented.
        version.check()?;
        // SAFETY: these are the types of the functions whose symbols have these names and versions: `rdma/fabric.h` and
        // `rdma/fi_errno.h` declare them.
        unsafe {
            Ok(Library {
                getinfo: transmute::<*mut c_void, GetInfo>(find(c"fi_getinfo", c"FABRIC_1.3")?),
                freeinfo: transmute::<*mut c_void, FreeInfo>(find(c"fi_freeinfo", c"FABRIC_1.3")?),
                dupinfo: transmute::<*mut c_void, DupInfo>(find(c"fi_dupinfo", c"FABRIC_1.3")?),
                fabric: transmute::<*mut c_void, OpenFabric>(find(c"fi_fabric", c"FABRIC_1.1")?),
                strerror: transmute::<*mut c_void, StrError>(find(c"fi_strerror", c"FABRIC_1.0")?),
                version,
            })
        }
    }

    /// The first suitable offer of provider `name`, in a list of its own that the caller must free.
    ///
    /// # Errors
    /// There is no such provider, or not at `host`.
    pub(super) fn offer(&self, name: &str, host: Option<&str>) -> io::Result<*mut Info> {
        let provider = CString::new(name).expect("names of providers have no zero");
        let node = host.map(CString::new).transpose().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let (node, flags) = node.as_ref().map_or((ptr::null(), 0), |node| (node.as_ptr(), FI_SOURCE));
        let mut offers = ptr::null_mut();
        // SAFETY: `dupinfo` of null answers empty hints with all attributes, or null. The provider's name is ours: it
        // is taken out again before the library frees the hints.
        let answer = unsafe {
            let hints = (self.dupinfo)(ptr::null());
            if hints.is_null() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            (*hints).caps = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
            (*(*hints).ep_attr).kind = FI_EP_RDM;
            let domain = (*hints).domain_attr;
            ((*domain).threading, (*domain).mr_mode) = (FI_THREAD_SAFE, MR_MODES);
            ((*domain).control_progress, (*domain).data_progress) = (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL);
            (*domain).resource_mgmt = FI_RM_ENABLED;
            (*(*hints).fabric_attr).prov_name = provider.as_ptr().cast_mut();
            let answer = (self.getinfo)(API_VERSION, node, ptr::null(), flags, hints, &raw mut offers);
            (*(*hints).fabric_attr).prov_name = ptr::null_mut();
            (self.freeinfo)(hints);
            answer as isize
        };
        if answer < 0 {
            let place = host.map_or_else(String::new, |host| format!(" at {host}"));
            let what = format!("provider {name} offers nothing{place} (`fi_info -p '{name}'` shows what there is)");
            return Err(self.error(&what, answer));
        }
        // SAFETY: a list of offers, each whole; the one that is taken is cut out by copying it.
        let found = unsafe {
            let mut offer = offers;
            while !offer.is_null() && !suits(&*offer) {
                offer = (*offer).next;
            }
            let copy = if offer.is_null() { ptr::null_mut() } else { (self.dupinfo)(offer) };
            (self.freeinfo)(offers);
            copy
        };
        if found.is_null() {
            return Err(self.error(&format!("provider {name} asks for more than is done here"), -FI_ENODATA));
        }
        Ok(found)
    }

    /// The error for a number that a call returned, with libfabric's text. [`io::ErrorKind::NotFound`]: there is no
    /// such provider here.
    pub(super) fn error(&self, what: &str, answer: isize) -> io::Error {
        // SAFETY: it takes any number and answers a text that is never changed or freed.
        let text = unsafe { CStr::from_ptr((self.strerror)(answer.unsigned_abs() as c_int)) };
        let kind = if answer == -FI_ENODATA { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
        io::Error::new(kind, format!("libfabric: {what}: {}", text.to_string_lossy()))
    }
}

/// The version of the library with these two functions.
fn version(number: *mut c_void, to_str: *mut c_void) -> Version {
    // SAFETY: `rdma/fabric.h` declares the functions with these types. The second answers null, or a text of this thread
    // that stays until its next call; it wants some address and reads nothing there for this kind.
    unsafe {
        let number = transmute::<*mut c_void, GetVersion>(number)();
        let text = transmute::<*mut c_void, ToStr>(to_str)(c"".as_ptr().cast(), FI_TYPE_VERSION);
        let text = if text.is_null() { c"" } else { CStr::from_ptr(text) };
        Version::of(number, &text.to_string_lossy())
    }
}

/// Whether the provider requires only modes that are handled here.
fn suits(offer: &Info) -> bool {
    // SAFETY: every offer has its attributes.
    let domain = unsafe { &*offer.domain_attr };
    offer.mode == 0 && domain.mr_mode & !MR_MODES == 0 && (1..=8).contains(&domain.mr_key_size)
}

/// The address of the symbol; null if there is none.
#[cfg(target_env = "gnu")]
fn symbol(library: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: `library` is one that was opened and is never closed; both texts end with a zero.
    unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) }
}

/// The address of the symbol; null if there is none. Only glibc has versions of symbols.
#[cfg(not(target_env = "gnu"))]
fn symbol(library: *mut c_void, name: &CStr, _version: &CStr) -> *mut c_void {
    // SAFETY: `library` is one that was opened and is never closed; the text ends with a zero.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Why the last of the calls above failed in this thread.
fn last_error() -> String {
    // SAFETY: it answers null or a text that stays until this thread's next such call; it is copied at once.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "no reason given".into()
        } else {
            CString::from(CStr::from_ptr(text)).to_string_lossy().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_that_says_what_to_install() {
        let error = Library::open(c"libfabric-of-nobody.so.1").err().expect("there is none");
        for part in ["libfabric-of-nobody.so.1", "apt install libfabric1", "dnf install libfabric"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_library_without_the_symbols_is_an_error_that_names_the_first() {
        let error = Library::open(c"libc.so.6").err().expect("it is another one");
        assert!(error.contains("fi_version"), "{error}");
    }
}
