//! Comparison of the declared layouts with a C compiler's layouts.

use super::*;
use std::process::Command;

/// Each `(C expression, our value)`.
fn layout() -> Vec<(String, usize)> {
    let mut rows = Vec::new();
    macro_rules! size {
        ($($kind:ident),*) => { $(rows.push((format!("sizeof(struct {})", stringify!($kind)), size_of::<$kind>()));)* };
    }
    macro_rules! offset {
        ($($kind:ident . $field:ident),*) => { $(rows.push((
            format!("offsetof(struct {}, {})", stringify!($kind), stringify!($field)),
            std::mem::offset_of!($kind, $field),
        ));)* };
    }
    size!(
        fid,
        fi_tx_attr,
        fi_rx_attr,
        fi_ep_attr,
        fi_fabric_attr,
        fi_info,
        fi_av_attr,
        fi_cq_attr
    );
    size!(
        fi_cq_msg_entry,
        fi_msg_rma,
        fi_rma_iov,
        fid_fabric,
        fid_domain,
        fid_mr,
        fid_av,
        fid_cq
    );
    offset!(
        fi_domain_attr.mr_mode,
        fi_domain_attr.mr_key_size,
        fi_domain_attr.tclass
    );
    offset!(fi_cq_err_entry.err, fi_cq_err_entry.err_data_size);
    offset!(fi_ops.control, fi_ops_fabric.domain, fi_ops_fabric.trywait);
    offset!(
        fi_ops_domain.av_open,
        fi_ops_domain.cq_open,
        fi_ops_domain.endpoint,
        fi_ops_mr.reg
    );
    offset!(
        fi_ops_av.insert,
        fi_ops_av.remove,
        fi_ops_cq.read,
        fi_ops_cq.readfrom,
        fi_ops_cq.readerr
    );
    offset!(fi_ops_msg.recv, fi_ops_msg.send, fi_ops_msg.inject, fi_ops_cm.getname);
    offset!(fi_ops_rma.read, fi_ops_rma.write, fi_ops_rma.writemsg);
    offset!(fid_ep.cm, fid_ep.msg, fid_ep.rma, fid_mr.key);
    rows.extend(
        [
            ("FI_SOURCE", FI_SOURCE),
            ("FI_NUMERICHOST", FI_NUMERICHOST),
            ("FI_DELIVERY_COMPLETE", FI_DELIVERY_COMPLETE),
            ("FI_CONTEXT2", FI_CONTEXT2),
            ("FI_ORDER_SAW", FI_ORDER_SAW),
            ("FI_REMOTE_WRITE", FI_REMOTE_WRITE),
            ("FI_GETWAIT", FI_GETWAIT as u64),
            ("FI_ENABLE", FI_ENABLE as u64),
            ("FI_WAIT_FD", FI_WAIT_FD as u64),
            ("FI_EP_RDM", FI_EP_RDM as u64),
            ("FI_AV_TABLE", FI_AV_TABLE as u64),
            ("FI_THREAD_DOMAIN", FI_THREAD_DOMAIN as u64),
            ("FI_ADDR_STR", FI_ADDR_STR.into()),
            ("FI_EAVAIL", FI_EAVAIL as u64),
        ]
        .map(|(name, value)| (name.to_owned(), value as usize)),
    );
    rows
}

#[test]
fn layouts_and_constants_are_those_of_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let rows = layout();
    let lines: String = rows
        .iter()
        .map(|(expression, _)| format!("printf(\"%zu\\n\", (size_t)({expression}));\n"))
        .collect();
    let headers = [
        "stdio",
        "stddef",
        "rdma/fabric",
        "rdma/fi_cm",
        "rdma/fi_domain",
        "rdma/fi_rma",
    ];
    let includes: String = headers.iter().map(|name| format!("#include <{name}.h>\n")).collect();
    std::fs::write(&source, format!("{includes}int main(void) {{\n{lines}return 0;\n}}\n")).unwrap();
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).output();
    if !compiled.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no C compiler or no libfabric headers (libfabric-dev)");
        return;
    }
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), rows.len());
    for ((expression, ours), theirs) in rows.iter().zip(text.lines()) {
        assert_eq!(ours.to_string(), theirs, "{expression}");
    }
}
