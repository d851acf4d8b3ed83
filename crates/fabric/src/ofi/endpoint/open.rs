//! Opening an endpoint and its objects, in libfabric's order.

use super::{Endpoint, EndpointHandle, Handle, checked, opened};
use crate::ofi::error::OfiError;
use crate::ofi::ffi::*;
use crate::ofi::providers::Provider;
use std::os::fd::RawFd;
use std::ptr;

impl Endpoint {
    /// Opens an endpoint, with a descriptor to sleep on if `sleep` is set and the provider has such a descriptor.
    pub fn open(provider: &Provider, sleep: bool) -> Result<Self, OfiError> {
        let library = provider.library().clone();
        let fail = |call| {
            let library = library.clone();
            let name = provider.name();
            move |result| library.error(name, call, result)
        };
        let mut info = provider.info.duplicate().ok_or_else(|| OfiError::Unusable {
            provider: provider.name().into(),
            why: "out of memory".into(),
        })?;
        let fabric = library.open_fabric(info.fabric_mut()).map_err(fail("fi_fabric"))?;
        let fabric = Handle(fabric);
        let raw = info.as_ptr();
        // SAFETY: for all calls through operation tables in this function: each object was just opened, and the table
        // is its own. The info is of the same library and lives until the end of the function.
        let domain = unsafe {
            let mut domain = ptr::null_mut();
            let open = (*(*fabric.0.as_ptr()).ops).domain;
            opened(open(fabric.0.as_ptr(), raw, &mut domain, ptr::null_mut()), domain)
        };
        let domain = domain.map_err(fail("fi_domain"))?;
        let (transmit_size, receive_size) = (info.tx().size, info.rx().size);
        let open_queue = |wait_obj| {
            let mut attributes = fi_cq_attr {
                size: (transmit_size + receive_size).clamp(128, 8192),
                flags: 0,
                format: FI_CQ_FORMAT_MSG,
                wait_obj,
                signaling_vector: 0,
                wait_cond: 0,
                wait_set: ptr::null_mut(),
            };
            let mut queue = ptr::null_mut();
            // SAFETY: as above.
            unsafe {
                let open = (*(*domain.0.as_ptr()).ops).cq_open;
                opened(
                    open(domain.0.as_ptr(), &mut attributes, &mut queue, ptr::null_mut()),
                    queue,
                )
            }
        };
        let sleeping = if sleep && provider.quirks().wait_fd {
            open_queue(FI_WAIT_FD).ok()
        } else {
            None
        };
        let wants_fd = sleeping.is_some();
        let queue = match sleeping {
            Some(queue) => queue,
            None => open_queue(FI_WAIT_NONE).map_err(fail("fi_cq_open"))?,
        };
        let mut attributes = fi_av_attr {
            type_: info.domain().av_type,
            rx_ctx_bits: 0,
            count: 64,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        // SAFETY: as above.
        let vector = unsafe {
            let mut vector = ptr::null_mut();
            let open = (*(*domain.0.as_ptr()).ops).av_open;
            opened(
                open(domain.0.as_ptr(), &mut attributes, &mut vector, ptr::null_mut()),
                vector,
            )
        };
        let vector = vector.map_err(fail("fi_av_open"))?;
        // SAFETY: as above.
        let endpoint = unsafe {
            let mut endpoint = ptr::null_mut();
            let open = (*(*domain.0.as_ptr()).ops).endpoint;
            opened(open(domain.0.as_ptr(), raw, &mut endpoint, ptr::null_mut()), endpoint)
        };
        let endpoint = endpoint.map_err(fail("fi_endpoint"))?;
        let fid = endpoint.0.as_ptr().cast::<fid>();
        // SAFETY: as above.
        unsafe {
            let ops = (*fid).ops;
            let bind = |object: *mut fid, flags| checked(((*ops).bind)(fid, object, flags));
            bind(queue.0.as_ptr().cast(), FI_TRANSMIT | FI_RECV).map_err(fail("fi_ep_bind(cq)"))?;
            bind(vector.0.as_ptr().cast(), 0).map_err(fail("fi_ep_bind(av)"))?;
            checked(((*ops).control)(fid, FI_ENABLE, ptr::null_mut())).map_err(fail("fi_enable"))?;
        }
        let mut wait_fd: RawFd = -1;
        if wants_fd {
            let queue = queue.0.as_ptr().cast::<fid>();
            // SAFETY: as above; FI_GETWAIT of a queue with FI_WAIT_FD writes an int.
            let result = unsafe { ((*(*queue).ops).control)(queue, FI_GETWAIT, (&raw mut wait_fd).cast()) };
            checked(result).map_err(fail("fi_control(FI_GETWAIT)"))?;
        }
        Ok(Self {
            wait_fd: (wait_fd >= 0).then_some(wait_fd),
            mr_mode: info.domain().mr_mode,
            key_bytes: info.domain().mr_key_size,
            inject_bytes: info.tx().inject_size,
            message_bytes: info.endpoint().max_msg_size,
            transmit_size,
            receive_size,
            source: provider.quirks().reports_source && info.top().caps & FI_SOURCE != 0,
            provider: provider.name(),
            endpoint: EndpointHandle(Some(endpoint)),
            vector,
            queue,
            domain,
            fabric,
            library,
        })
    }
}
