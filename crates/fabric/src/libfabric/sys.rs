//! The part of libfabric's binary interface that this crate uses, so that no header is needed to build.
//!
//! Written after the headers of 1.17 and compared with those of 2.1. Structures from the library have grown at their
//! ends only, so each one here is a prefix. Tables of functions are cut off after the last function that is called, and
//! hold a plain word for others that are not called. Names are those of the headers without `fi_`; every object begins
//! with a `fid`. The module has only declarations: `library`, `device` and `endpoint` keep the rules of their use.

use std::ffi::{c_char, c_int, c_void};

/// Requested version of the interface: 1.17, which every later library supports.
pub(super) const API_VERSION: u32 = 1 << 16 | 17;

pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_TRANSMIT: u64 = 1 << 11;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_COMPLETION: u64 = 1 << 24;
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_SOURCE: u64 = 1 << 57;

pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;

pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_THREAD_SAFE: c_int = 1;
pub(super) const FI_PROGRESS_MANUAL: c_int = 2;
pub(super) const FI_RM_ENABLED: c_int = 2;
pub(super) const FI_CQ_FORMAT_CONTEXT: c_int = 1;
pub(super) const FI_WAIT_NONE: c_int = 0;
pub(super) const FI_WAIT_FD: c_int = 3;
pub(super) const FI_GETWAIT: c_int = 5;
pub(super) const FI_ENABLE: c_int = 6;
/// The version of the library, as a text.
pub(super) const FI_TYPE_VERSION: c_int = 18;

/// Try again: a queue is full, or a connection is being made.
pub(super) const FI_EAGAIN: isize = 11;
/// There is no such provider, or none with the features that were asked for.
pub(super) const FI_ENODATA: isize = 61;
/// An operation failed: read its error.
pub(super) const FI_EAVAIL: isize = 259;
/// The key that was asked for is taken.
pub(super) const FI_ENOKEY: isize = 266;

/// A function that is not called.
type Unused = *const c_void;

#[repr(C)]
pub(super) struct Fid {
    class: usize,
    context: *mut c_void,
    pub(super) ops: *const Ops,
}

#[repr(C)]
pub(super) struct Ops {
    size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    addr_format: u32,
    src_addrlen: usize,
    dest_addrlen: usize,
    src_addr: *mut c_void,
    dest_addr: *mut c_void,
    handle: *mut Fid,
    pub(super) tx_attr: *mut TxAttr,
    rx_attr: *mut c_void,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
}

#[repr(C)]
pub(super) struct TxAttr {
    caps: u64,
    mode: u64,
    op_flags: u64,
    msg_order: u64,
    comp_order: u64,
    inject_size: usize,
    pub(super) size: usize,
}

#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: c_int,
    protocol: u32,
    protocol_version: u32,
    pub(super) max_msg_size: usize,
}

#[repr(C)]
pub(super) struct DomainAttr {
    domain: *mut FidDomain,
    name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
}

#[repr(C)]
pub(super) struct FabricAttr {
    fabric: *mut FidFabric,
    name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    prov_version: u32,
    api_version: u32,
}

#[repr(C)]
pub(super) struct FidFabric {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsFabric,
}

#[repr(C)]
pub(super) struct OpsFabric {
    size: usize,
    pub(super) domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, *mut c_void) -> c_int,
    passive_ep: Unused,
    eq_open: Unused,
    wait_open: Unused,
    pub(super) trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
}

#[repr(C)]
pub(super) struct FidDomain {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsDomain,
    pub(super) mr: *const OpsMr,
}

#[repr(C)]
pub(super) struct OpsDomain {
    size: usize,
    pub(super) av_open: unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub(super) cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub(super) endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct OpsMr {
    size: usize,
    pub(super) reg: unsafe extern "C" fn(
        domain: *mut Fid,
        start: *const c_void,
        len: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        region: *mut *mut FidMr,
        context: *mut c_void,
    ) -> c_int,
}

#[repr(C)]
pub(super) struct FidMr {
    pub(super) fid: Fid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

#[repr(C)]
pub(super) struct FidAv {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsAv,
}

#[repr(C)]
pub(super) struct OpsAv {
    size: usize,
    pub(super) insert:
        unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, flags: u64, context: *mut c_void) -> c_int,
}

#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct FidCq {
    pub(super) fid: Fid,
    pub(super) ops: *const OpsCq,
}

#[repr(C)]
pub(super) struct OpsCq {
    size: usize,
    pub(super) read: unsafe extern "C" fn(*mut FidCq, *mut c_void, count: usize) -> isize,
    readfrom: Unused,
    pub(super) readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, flags: u64) -> isize,
}

#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CqEntry {
    pub(super) op_context: *mut c_void,
}

#[repr(C)]
pub(super) struct CqErrEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    /// Later versions have more fields: 8 bytes so far.
    pub(super) later: [u64; 6],
}

#[repr(C)]
pub(super) struct FidEp {
    pub(super) fid: Fid,
    ops: Unused,
    pub(super) cm: *const OpsCm,
    msg: Unused,
    pub(super) rma: *const OpsRma,
}

#[repr(C)]
pub(super) struct OpsCm {
    size: usize,
    setname: Unused,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

#[repr(C)]
pub(super) struct OpsRma {
    size: usize,
    read: Unused,
    readv: Unused,
    pub(super) readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, flags: u64) -> isize,
    write: Unused,
    writev: Unused,
    pub(super) writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, flags: u64) -> isize,
}

#[repr(C)]
pub(super) struct MsgRma {
    pub(super) msg_iov: *const libc::iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) rma_iov: *const RmaIov,
    pub(super) rma_iov_count: usize,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

#[repr(C)]
pub(super) struct RmaIov {
    pub(super) addr: u64,
    pub(super) len: usize,
    pub(super) key: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// The numbers are from a C program on x86-64, compiled with the headers of 1.17 and again with those of 2.1.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn what_is_used_lies_where_the_headers_say() {
        let found = [
            [offset_of!(Fid, ops), offset_of!(Ops, close), offset_of!(Ops, bind), offset_of!(Ops, control)],
            [offset_of!(Info, caps), offset_of!(Info, mode), offset_of!(Info, tx_attr), offset_of!(Info, ep_attr)],
            [offset_of!(Info, src_addr), offset_of!(Info, domain_attr), offset_of!(Info, fabric_attr), 0],
            [offset_of!(TxAttr, size), offset_of!(EpAttr, kind), offset_of!(EpAttr, max_msg_size), 0],
            [
                offset_of!(DomainAttr, threading),
                offset_of!(DomainAttr, control_progress),
                offset_of!(DomainAttr, data_progress),
                offset_of!(DomainAttr, resource_mgmt),
            ],
            [offset_of!(DomainAttr, mr_mode), offset_of!(DomainAttr, mr_key_size), 0, 0],
            [offset_of!(FabricAttr, prov_name), offset_of!(FabricAttr, api_version), size_of::<FabricAttr>(), 0],
            [offset_of!(FidFabric, ops), offset_of!(OpsFabric, domain), offset_of!(OpsFabric, trywait), 0],
            [offset_of!(FidDomain, ops), offset_of!(FidDomain, mr), offset_of!(OpsDomain, endpoint), 0],
            [offset_of!(OpsMr, reg), offset_of!(FidMr, mem_desc), offset_of!(FidMr, key), size_of::<FidMr>()],
            [offset_of!(FidAv, ops), offset_of!(OpsAv, insert), size_of::<AvAttr>(), offset_of!(AvAttr, flags)],
            [offset_of!(FidCq, ops), offset_of!(OpsCq, read), offset_of!(OpsCq, readerr), size_of::<CqEntry>()],
            [size_of::<CqAttr>(), offset_of!(CqAttr, wait_obj), offset_of!(CqErrEntry, err), 0],
            [offset_of!(CqErrEntry, err_data_size), offset_of!(CqErrEntry, later), 0, 0],
            [offset_of!(FidEp, cm), offset_of!(FidEp, rma), offset_of!(OpsCm, getname), 0],
            [offset_of!(OpsRma, readmsg), offset_of!(OpsRma, writemsg), size_of::<MsgRma>(), size_of::<RmaIov>()],
            [offset_of!(MsgRma, addr), offset_of!(MsgRma, rma_iov), offset_of!(MsgRma, context), 0],
        ];
        let printed = [
            [16, 8, 16, 24],
            [8, 16, 72, 88],
            [48, 96, 104, 0],
            [48, 0, 16, 0],
            [16, 20, 24, 28],
            [36, 40, 0, 0],
            [16, 28, 32, 0],
            [24, 8, 40, 0],
            [24, 32, 24, 0],
            [8, 24, 32, 40],
            [24, 8, 48, 40],
            [24, 8, 24, 8],
            [40, 20, 56, 0],
            [72, 80, 0, 0],
            [32, 48, 16, 0],
            [24, 48, 64, 24],
            [24, 32, 48, 0],
        ];
        assert_eq!(found, printed);
    }
}
