//! Comparison of the structures with the header of libibverbs.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use super::layout::*;

/// Offsets of members, each with the C expression for it.
macro_rules! compared {
    ($($structure:ident = $name:literal: $($member:ident),+;)+) => {
        vec![$($(
            (
                offset_of!($structure, $member),
                concat!("offsetof(struct ", $name, ", ", stringify!($member), ")"),
            ),
        )+)+]
    };
}

macro_rules! sized {
    ($($structure:ident = $name:literal;)+) => {
        vec![$((size_of::<$structure>(), concat!("sizeof(struct ", $name, ")")),)+]
    };
}

fn compared() -> Vec<(usize, &'static str)> {
    let mut all = compared! {
        ContextOps = "ibv_context_ops": poll_cq, req_notify_cq, post_send, post_recv;
        IbvContext = "ibv_context": device, ops, cmd_fd, async_fd;
        Pd = "ibv_pd": context, handle;
        Mr = "ibv_mr": context, pd, addr, length, handle, lkey, rkey;
        CompChannel = "ibv_comp_channel": context, fd, refcnt;
        Cq = "ibv_cq": context, channel, cq_context, handle, cqe;
        Qp = "ibv_qp": context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
            qp_type;
        QpCap = "ibv_qp_cap": max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
            max_inline_data;
        QpInitAttr = "ibv_qp_init_attr": qp_context, send_cq, recv_cq, srq, cap, qp_type,
            sq_sig_all;
        GlobalRoute = "ibv_global_route": dgid, flow_label, sgid_index, hop_limit,
            traffic_class;
        AhAttr = "ibv_ah_attr": grh, dlid, sl, src_path_bits, static_rate, is_global, port_num;
        QpAttr = "ibv_qp_attr": qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
            sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
            alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit;
        PortAttr = "ibv_port_attr": state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags,
            max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc,
            max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
            phys_state, link_layer, flags, port_cap_flags2;
        Sge = "ibv_sge": addr, length, lkey;
        SendWr = "ibv_send_wr": wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data;
        RecvWr = "ibv_recv_wr": wr_id, next, sg_list, num_sge;
        Wc = "ibv_wc": wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp,
            wc_flags, pkey_index, slid, sl, dlid_path_bits;
        AsyncEvent = "ibv_async_event": element, event_type;
    };
    all.extend(sized! {
        ContextOps = "ibv_context_ops";
        Pd = "ibv_pd";
        Mr = "ibv_mr";
        CompChannel = "ibv_comp_channel";
        QpCap = "ibv_qp_cap";
        QpInitAttr = "ibv_qp_init_attr";
        GlobalRoute = "ibv_global_route";
        AhAttr = "ibv_ah_attr";
        QpAttr = "ibv_qp_attr";
        PortAttr = "ibv_port_attr";
        Sge = "ibv_sge";
        SendWr = "ibv_send_wr";
        RecvWr = "ibv_recv_wr";
        Wc = "ibv_wc";
        AsyncEvent = "ibv_async_event";
    });
    all.push((
        offset_of!(SendWr, remote_addr),
        "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)",
    ));
    all.push((
        offset_of!(SendWr, rkey),
        "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
    ));
    all
}

#[test]
#[ignore = "needs a C compiler and the header infiniband/verbs.h"]
fn structures_are_laid_out_as_in_the_header() {
    let all = compared();
    let mut program = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    for (number, expression) in &all {
        writeln!(
            program,
            "_Static_assert({expression} == {number}, \"{expression}\");"
        )
        .expect("a text");
    }
    let folder = std::env::temp_dir().join(format!("ringfold-layout-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let file = folder.join("layout.c");
    std::fs::write(&file, program).expect("a file");
    let compiled = Command::new("cc").arg("-fsyntax-only").arg(&file).output();
    std::fs::remove_dir_all(&folder).expect("a folder of our own");
    let compiled = compiled.expect("a C compiler");
    let complaints = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{complaints}");
    println!("{} sizes and offsets agree", all.len());
}
