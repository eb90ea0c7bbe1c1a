//! Failures of endpoints: functions of libfabric are replaced by others that fail.

use super::*;
use crate::{
    libfabric::{Provider, device::End},
    shm::mapping::create,
    words,
};
use std::{
    env, slice,
    time::{Duration, Instant},
};

const BYTES: usize = 1 << 16;
const TIMEOUT: Duration = Duration::from_secs(30);
/// Places of functions in the tables of closable objects, and of queues.
const CLOSE: usize = 1;
const READ: usize = 1;
const READ_ERROR: usize = 3;

unsafe extern "C" fn refuses_to_close(_fid: *mut Fid) -> c_int {
    -libc::EBUSY
}

unsafe extern "C" fn cannot_be_read(_queue: *mut FidCq, _entries: *mut c_void, _count: usize) -> isize {
    -5
}

unsafe extern "C" fn announces_an_error(_queue: *mut FidCq, _entries: *mut c_void, _count: usize) -> isize {
    -FI_EAVAIL
}

unsafe extern "C" fn has_no_error(_queue: *mut FidCq, _entry: *mut CqErrEntry, _flags: u64) -> isize {
    0
}

/// A device of the tcp provider, unless libfabric is not installed.
fn device() -> Option<Arc<Device>> {
    match Device::open(Provider::Tcp, Some("127.0.0.1")) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(env::var_os("LEEWARD_TEST_LIBFABRIC").is_none(), "it is required: {error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Makes an object use a copy of its table with another function at `place`.
fn replace<T>(table: &mut *const T, place: usize, function: *const c_void) {
    // SAFETY: a table of libfabric begins with its size in bytes, and is words otherwise.
    let words = unsafe {
        let words = **(&raw const *table).cast::<*const usize>() / size_of::<usize>();
        slice::from_raw_parts((*table).cast::<*const c_void>(), words)
    };
    let copy = words.to_vec().leak();
    copy[place] = function;
    *table = copy.as_ptr().cast();
}

fn staging() -> Arc<Mapping> {
    let (_, mapping) = create(BYTES, Permission::ReadWrite).expect("there is memory");
    Arc::new(mapping)
}

fn ends(device: &Device) -> Vec<End> {
    let mut ends = Vec::new();
    device.progress(&mut ends);
    ends
}

#[test]
fn an_endpoint_that_does_not_close_fails_its_device_and_keeps_its_memory() {
    let Some(device) = device() else { return };
    let owner = Endpoint::open(&device, 1).expect("it opens");
    let (memory, granted) = (staging(), staging());
    let kept = [&memory, &granted].map(Arc::downgrade);
    let granted = Registration::for_peers(&device, granted, Permission::ReadWrite).expect("it can be registered");
    let address = owner.address().expect("it has one");
    let initiator = Initiator::open(&device, 2, memory, &address).expect("it opens");
    // SAFETY: the endpoint is open, and nothing else uses it.
    let ops = unsafe { &mut (*initiator.endpoint.endpoint).fid.ops };
    replace(ops, CLOSE, refuses_to_close as *const c_void);
    assert_eq!(device.failure(), None);
    drop((initiator, granted));
    assert!(device.failure().is_some_and(|reason| reason.contains("endpoint")), "{:?}", device.failure());
    assert!(kept.iter().all(|memory| memory.upgrade().is_some()), "the provider may still use it");
    assert!(Endpoint::open(&device, 3).is_err());
    assert!(Registration::for_peers(&device, staging(), Permission::ReadWrite).is_err());
    assert!(owner.check().is_err());
}

#[test]
fn an_endpoint_that_closes_lets_its_memory_go() {
    let Some(device) = device() else { return };
    let owner = Endpoint::open(&device, 1).expect("it opens");
    let memory = staging();
    let kept = Arc::downgrade(&memory);
    drop(Initiator::open(&device, 2, memory, &owner.address().expect("it has one")).expect("it opens"));
    assert!(kept.upgrade().is_none());
    assert_eq!(device.failure(), None);
}

#[test]
fn what_is_wrong_with_a_queue_ends_its_connection_and_no_other() {
    let broken: [&[(usize, *const c_void)]; 2] = [
        &[(READ, cannot_be_read as *const c_void)],
        &[(READ, announces_an_error as *const c_void), (READ_ERROR, has_no_error as *const c_void)],
    ];
    for functions in broken {
        let Some(device) = device() else { return };
        let [first, second] = [7, 8].map(|connection| Endpoint::open(&device, connection).expect("it opens"));
        assert!(ends(&device).is_empty());
        // SAFETY: the queue is open, and nothing else uses it.
        let ops = unsafe { &mut (*first.queue).ops };
        functions.iter().for_each(|(place, function)| replace(ops, *place, *function));
        let ended = ends(&device);
        assert!(matches!(&ended[..], [End { connection: 7, result: Err(_) }]), "{} ends", ended.len());
        assert!(ends(&device).is_empty(), "it is told once");
        assert!(first.check().is_err() && second.check().is_ok());
        assert_eq!(device.failure(), None);
    }
}

/// A peer that was granted memory for reading uses its grant to write. The provider refuses, and reads go on working.
#[test]
fn memory_that_is_registered_for_reading_is_not_written() {
    let Some(device) = device() else { return };
    let memory = staging();
    words::copy_in(memory.words(), 0, &[7; 4096]);
    let granted = Registration::for_peers(&device, Arc::clone(&memory), Permission::ReadOnly).expect("registered");
    let (key, base) = granted.remote();
    // The outcome of one transfer of a new pair of endpoints.
    let transfer = |direction, connection| {
        let owner = Endpoint::open(&device, connection).expect("it opens");
        let address = owner.address().expect("it has one");
        let initiator = Initiator::open(&device, connection + 1, staging(), &address).expect("it opens");
        let begin = Instant::now();
        while !initiator.transfer(direction, 0..4096, (base, key), 9).expect("it is posted") {
            assert!(begin.elapsed() < TIMEOUT, "it does not start");
            ends(&device);
        }
        loop {
            assert!(begin.elapsed() < TIMEOUT, "it does not end");
            let mut found = ends(&device).into_iter().filter(|end| end.connection == connection + 1);
            if let Some(End { result, .. }) = found.next() {
                let mut first = [0; 8];
                words::copy_out(initiator.staging().words(), 0, &mut first);
                return (result, first);
            }
        }
    };
    assert_eq!(transfer(Direction::Read, 10), (Ok(9), [7; 8]));
    assert!(transfer(Direction::Write, 20).0.is_err());
    let mut bytes = [0; 4096];
    words::copy_out(memory.words(), 0, &mut bytes);
    assert_eq!(bytes, [7; 4096]);
    assert_eq!(transfer(Direction::Read, 30), (Ok(9), [7; 8]));
}
