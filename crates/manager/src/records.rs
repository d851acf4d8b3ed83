//! Conversion of agents' messages to checked records, and of records to messages. A conversion from a message refuses
//! texts, counts and names that are over a limit or malformed.

use hotlease_lease::agent::{Availability, NodeLimits, OfferedCores, OfferedGpus};
use hotlease_lease::ledger::{FunctionId, FunctionTotals, FunctionUse};
use hotlease_lease::manager::{AgentOffer, AgentProfile, AgentState, LeaseNote, NodeWish};
use hotlease_net::{Address, Peer};
use hotlease_store::{LeaseRecord, LeaseState, LedgerRow, RowKey};
use hotlease_wire::Rejection;
use hotlease_wire::grpc::{
    AgentInfo, CoresWanted, FunctionUsage, LeaseInfo, NodeLimits as LimitsInfo, NodeWish as WantedWish, OfferWanted,
    PastUsage, Usage,
};
use hotlease_wire::ids::{AgentId, BootId, CodeHash, Epoch};
use hotlease_wire::limits::{
    FUNCTION_LABEL_BYTES_MAX, FUNCTIONS_BILLED_MAX, GPUS_PER_AGENT_MAX, LABEL_BYTES_MAX, PLACES_PER_CORE_MAX,
    TENANT_BYTES_MAX,
};
use hotlease_wire::session::UsageTotals;
use std::sync::Arc;
use std::time::Duration;

/// Largest number of cores of one agent.
pub(crate) const CORES_MAX: usize = 8192;
/// Longest path of a Unix socket, bytes.
const PATH_BYTES_MAX: usize = 107;
/// Longest other text that an agent reports, bytes.
const TEXT_BYTES_MAX: usize = 256;

/// State in a [`LeaseInfo`] of a lease that has ended.
const ENDED: &str = "ended";
/// State in a [`LeaseInfo`] of a lease that is running.
const ACTIVE: &str = "active";

pub(crate) fn bad_request(what: impl Into<String>) -> Rejection {
    Rejection::BadRequest { what: what.into() }
}

fn check_limit(what: &str, size: usize, limit: usize) -> Result<(), Rejection> {
    if size > limit {
        return Err(bad_request(format!("{what} of {size} is over the limit of {limit}")));
    }
    Ok(())
}

/// Id and boot of the agent that sent a message.
pub(crate) fn agent_ids(info: &AgentInfo) -> Result<(AgentId, BootId), Rejection> {
    parse_ids(&info.id, &info.boot)
}

pub(crate) fn parse_ids(agent: &str, boot: &str) -> Result<(AgentId, BootId), Rejection> {
    let id = agent
        .parse()
        .map_err(|_| bad_request("agent id is not 16 hexadecimal digits"))?;
    let boot = boot
        .parse()
        .map_err(|_| bad_request("boot id is not 16 hexadecimal digits"))?;
    Ok((id, boot))
}

fn socket_path(what: &str, path: &str) -> Result<String, Rejection> {
    check_limit(what, path.len(), PATH_BYTES_MAX)?;
    if !path.starts_with('/') || path.contains('\0') {
        return Err(bad_request(format!("{what} is not an absolute path of a Unix socket")));
    }
    Ok(path.to_owned())
}

/// Checks the address on which an agent serves other hosts. It must be one of the hosts in the agent's certificate,
/// so that an agent cannot send requests to another agent's address.
fn endpoint(text: &str, owner: Option<&Peer>) -> Result<String, Rejection> {
    let address: Address = text
        .parse()
        .map_err(|error: hotlease_net::NetError| bad_request(format!("agent endpoint: {error}")))?;
    match owner {
        Some(peer) if !peer.hosts.iter().any(|host| host == address.host()) => Err(bad_request(format!(
            "the agent says that it is at {address}, and its certificate is for {}",
            peer.hosts.join(", ")
        ))),
        _ => Ok(address.to_string()),
    }
}

/// Checked record of an agent. `owner`: the certificate that the agent showed; `None` over the local socket.
pub(crate) fn agent_record(info: AgentInfo, owner: Option<&Peer>) -> Result<AgentProfile, Rejection> {
    let (id, boot) = agent_ids(&info)?;
    check_limit("number of cores", info.cores.len(), CORES_MAX)?;
    let gpus = gpus(&info)?;
    let limits = info.limits.map(node_limits).transpose()?;
    Ok(AgentProfile {
        id,
        boot,
        // An agent on another host must not direct the manager to a local socket.
        address: match owner {
            None => socket_path("agent address", &info.address)?,
            Some(_) => endpoint(&info.address, owner)?,
        },
        session_socket: socket_path("session socket", &info.session_socket)?,
        endpoint: match info.endpoint.as_str() {
            "" => String::new(),
            text => endpoint(text, owner)?,
        },
        owner: owner.map(|peer| peer.name.clone()).unwrap_or_default(),
        free_cores: info.free_cores.min(info.cores.len() as u32),
        availability: availability(&info.state)?,
        order: info.order,
        host: host(info.host)?,
        free_places: info.free_places,
        places_per_core: info.places_per_core.min(PLACES_PER_CORE_MAX),
        cores: info.cores,
        memory_bytes: info.memory_bytes,
        gpus,
        free_gpus: info.free_gpus.min(gpus),
        gpu_numbers: info.gpu_numbers,
        limits: limits.map(Arc::new),
        pool: info.pool,
    })
}

/// Resources that an agent offers, as it reports them.
pub(crate) fn offering(info: &AgentInfo) -> Result<AgentOffer, Rejection> {
    check_limit("number of cores", info.cores.len(), CORES_MAX)?;
    Ok(AgentOffer {
        cores: info.cores.clone(),
        memory_bytes: info.memory_bytes,
        gpus: gpus(info)?,
        gpu_numbers: info.gpu_numbers.clone(),
        availability: availability(&info.state)?,
        order: info.order,
    })
}

fn gpus(info: &AgentInfo) -> Result<u32, Rejection> {
    check_limit("number of GPUs", info.gpus as usize, GPUS_PER_AGENT_MAX as usize)?;
    check_limit("number of GPUs", info.gpu_numbers.len(), GPUS_PER_AGENT_MAX as usize)?;
    Ok(info.gpus)
}

fn node_limits(told: LimitsInfo) -> Result<NodeLimits, Rejection> {
    check_limit("number of cores", told.cores.len(), CORES_MAX)?;
    Ok(NodeLimits {
        cores: told.cores.into_iter().collect(),
        gpus: told.gpus.min(GPUS_PER_AGENT_MAX),
        memory_bytes: told.memory_bytes,
    })
}

fn availability(state: &str) -> Result<Availability, Rejection> {
    match state {
        "" => Ok(Availability::Serving),
        Availability::LEAVING => Ok(Availability::Stopping),
        word => Availability::of_word(word).ok_or_else(|| bad_request("the agent's state is not known")),
    }
}

fn host(name: String) -> Result<String, Rejection> {
    check_limit("host name", name.len(), TEXT_BYTES_MAX)?;
    if name.chars().any(char::is_control) {
        return Err(bad_request("the host name holds control characters"));
    }
    Ok(name)
}

/// Number of distinct cores: a shared lease lists a core once for each of its slots.
pub(crate) fn distinct_cores(cores: &[u32]) -> u32 {
    let mut cores = cores.to_vec();
    cores.sort_unstable();
    cores.dedup();
    cores.len() as u32
}

/// Message that tells an agent the operator's wish for its node. Deadlines become durations from `now_ms` (Unix time).
pub(crate) fn node_wish(wish: &NodeWish, now_ms: u64) -> WantedWish {
    let state = &wish.state;
    let offer = state.offer.as_ref().map(|offer| {
        let (choice, count, cores) = match &offer.cores {
            OfferedCores::Unchanged => (CoresWanted::CoresUnchanged, 0, Vec::new()),
            OfferedCores::All => (CoresWanted::CoresAll, 0, Vec::new()),
            OfferedCores::Count(count) => (CoresWanted::CoresCount, *count, Vec::new()),
            OfferedCores::These(cores) => (CoresWanted::CoresThese, 0, cores.iter().copied().collect()),
        };
        let (gpus, numbers) = match &offer.gpus {
            Some(OfferedGpus::Count(count)) => (Some(*count), None),
            Some(OfferedGpus::These(numbers)) => (None, Some(numbers.iter().copied().collect())),
            None => (None, None),
        };
        OfferWanted {
            choice: choice.into(),
            count,
            cores,
            memory_bytes: offer.memory_bytes.unwrap_or(0),
            gpus,
            gpus_named: numbers.is_some(),
            gpu_numbers: numbers.unwrap_or_default(),
            within_ms: offer.by_ms.saturating_sub(now_ms),
        }
    });
    WantedWish {
        number: wish.number,
        drained: state.drained_by_ms.is_some(),
        within_ms: state.drained_by_ms.map_or(0, |by_ms| by_ms.saturating_sub(now_ms)),
        offer,
    }
}

/// Message that lists an agent. `silent`: time since its last heartbeat.
pub(crate) fn agent_info(record: &AgentProfile, state: AgentState, silent: Duration) -> AgentInfo {
    AgentInfo {
        id: record.id.to_string(),
        boot: record.boot.to_string(),
        address: record.address.clone(),
        session_socket: record.session_socket.clone(),
        cores: record.cores.clone(),
        free_cores: record.free_cores,
        memory_bytes: record.memory_bytes,
        state: match state {
            AgentState::Serving => record.availability.to_string(),
            silent => silent.to_string(),
        },
        last_heartbeat_ms: silent.as_millis() as u64,
        pool: record.pool,
        endpoint: record.endpoint.clone(),
        host: record.host.clone(),
        order: record.order,
        places_per_core: record.places_per_core,
        free_places: record.free_places,
        gpus: record.gpus,
        free_gpus: record.free_gpus,
        gpu_numbers: record.gpu_numbers.clone(),
        limits: None,
    }
}

pub(crate) fn totals(usage: Option<Usage>) -> UsageTotals {
    usage.into()
}

pub(crate) fn usage(totals: UsageTotals) -> Usage {
    totals.into()
}

/// Usage of functions, as an agent reports it.
pub(crate) fn functions(told: Vec<FunctionUsage>) -> Result<FunctionTotals, Rejection> {
    check_limit("number of functions of a lease", told.len(), FUNCTIONS_BILLED_MAX + 1)?;
    let function = |told: FunctionUsage| {
        check_limit("function's name", told.name.len(), FUNCTION_LABEL_BYTES_MAX)?;
        let library = told.library.try_into();
        let library = library.map_err(|_| bad_request("hash of a function's library is not 32 bytes"))?;
        let used = FunctionUse {
            compute_ns: told.compute_ns,
            invocations: told.invocations,
        };
        Ok((FunctionId::new(CodeHash(library), &told.name), used))
    };
    told.into_iter().map(function).collect()
}

/// Record and ledger row of a lease, as its agent reports it. `at_ms`: Unix time that is recorded as the time of the
/// grant.
pub(crate) fn lease_record(
    agent: AgentId,
    boot: BootId,
    info: LeaseInfo,
    at_ms: u64,
) -> Result<(LeaseRecord, LedgerRow), Rejection> {
    check_limit("tenant's name", info.tenant.len(), TENANT_BYTES_MAX)?;
    check_limit("label", info.label.len(), LABEL_BYTES_MAX)?;
    check_limit("end reason", info.end_reason.len(), TEXT_BYTES_MAX)?;
    check_limit("number of cores", info.cores.len(), CORES_MAX)?;
    check_limit("number of GPUs", info.gpus.len(), GPUS_PER_AGENT_MAX as usize)?;
    let state = match info.state.as_str() {
        ACTIVE => LeaseState::Active,
        ENDED => LeaseState::Ended { why: info.end_reason },
        _ => return Err(bad_request("lease state is neither active nor ended")),
    };
    let record = LeaseRecord {
        id: info
            .id
            .parse()
            .map_err(|_| bad_request("lease id is not 16 hexadecimal digits"))?,
        agent,
        boot,
        tenant: info.tenant,
        label: info.label,
        job: String::new(),
        epoch: Epoch(info.epoch),
        slots: distinct_cores(&info.cores),
        busy_slots: info.cores.len() as u32,
        cores: info.cores,
        memory_bytes: 0,
        gpus: info.gpus.len() as u32,
        granted_ms: at_ms,
        state,
    };
    let row = LedgerRow {
        key: record.key(),
        tenant: record.tenant.clone(),
        usage: totals(info.usage),
        functions: functions(info.functions)?,
        settled: record.state != LeaseState::Active,
    };
    Ok((record, row))
}

/// Facts of a lease that the state machine needs.
pub(crate) fn lease_note(lease: LeaseRecord) -> LeaseNote {
    LeaseNote {
        agent: lease.agent,
        boot: lease.boot,
        tenant: lease.tenant,
        label: lease.label,
        job: lease.job,
        epoch: lease.epoch,
        cores: lease.cores,
        billable_cores: lease.slots,
        busy_cores: lease.busy_slots,
        memory_bytes: lease.memory_bytes,
        gpus: lease.gpus,
        granted_ms: lease.granted_ms,
    }
}

/// Ledger row of a lease that has ended, from its agent's journal.
pub(crate) fn past_row(agent: AgentId, past: PastUsage) -> Result<LedgerRow, Rejection> {
    check_limit("tenant's name", past.tenant.len(), TENANT_BYTES_MAX)?;
    let (_, boot) = parse_ids(&agent.to_string(), &past.boot)?;
    let lease = past.lease.parse();
    Ok(LedgerRow {
        key: RowKey {
            agent,
            boot,
            lease: lease.map_err(|_| bad_request("lease id is not 16 hexadecimal digits"))?,
        },
        tenant: past.tenant,
        usage: totals(past.usage),
        functions: functions(past.functions)?,
        settled: true,
    })
}

/// Describes a lease whose agent cannot be asked: its expiry is not known.
pub(crate) fn lease_info(record: LeaseRecord, used: Option<UsageTotals>) -> LeaseInfo {
    let (state, end_reason) = match record.state {
        LeaseState::Active => (ACTIVE, String::new()),
        LeaseState::Ended { why } => (ENDED, why),
    };
    LeaseInfo {
        id: record.id.to_string(),
        agent: record.agent.to_string(),
        tenant: record.tenant,
        label: record.label,
        state: state.into(),
        epoch: record.epoch.0,
        shared: (distinct_cores(&record.cores) as usize) < record.cores.len(),
        cores: record.cores,
        usage: used.map(usage),
        end_reason,
        // Only the agent knows the rest.
        ..LeaseInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> AgentInfo {
        AgentInfo {
            id: "01".repeat(8),
            boot: "02".repeat(8),
            address: "/run/agent.sock".into(),
            session_socket: "/run/session.sock".into(),
            cores: vec![0, 1],
            free_cores: 9,
            ..Default::default()
        }
    }

    #[test]
    fn an_agent_cannot_register_nonsense() {
        let record = agent_record(info(), None).unwrap();
        assert_eq!(record.free_cores, 2, "no more are free than it has");
        let spoiled: [fn(&mut AgentInfo); 7] = [
            |info| info.id.clear(),
            |info| info.boot.push('0'),
            |info| info.address = "http://elsewhere".into(),
            |info| info.session_socket = format!("/{}", "x".repeat(200)),
            |info| info.cores = vec![0; CORES_MAX + 1],
            |info| info.address = "/run/\0".into(),
            |info| info.endpoint = "https://".into(),
        ];
        for (number, spoil) in spoiled.iter().enumerate() {
            let mut info = info();
            spoil(&mut info);
            assert!(
                agent_record(info, None).is_err(),
                "spoiled message {number} was accepted"
            );
        }
    }

    #[test]
    fn an_agent_of_another_host_speaks_for_its_own_hosts_only() {
        let owner = Peer {
            role: hotlease_net::CertificateRole::Agent,
            name: "node1".into(),
            tenant: None,
            hosts: vec!["node1".into(), "10.0.0.1".into()],
            fingerprint: [0; 32],
        };
        let at = |address: &str| {
            let info = AgentInfo {
                address: address.into(),
                endpoint: address.into(),
                ..info()
            };
            agent_record(info, Some(&owner))
        };
        assert_eq!(at("https://10.0.0.1:7071").unwrap().owner, "node1");
        for elsewhere in ["https://node2:7071", "/run/agent.sock", "https://10.0.0.2:1", ""] {
            assert!(at(elsewhere).is_err(), "node1 was taken for {elsewhere:?}");
        }
    }

    #[test]
    fn reported_function_usage_is_checked() {
        let told = |library: usize, name: usize| FunctionUsage {
            library: vec![1; library],
            name: "x".repeat(name),
            compute_ns: 1,
            invocations: 1,
        };
        assert_eq!(functions(vec![told(32, 1), told(32, 128)]).expect("taken").len(), 2);
        for wrong in [told(31, 1), told(0, 1), told(32, 129)] {
            assert!(functions(vec![wrong]).is_err());
        }
        let many = (0..FUNCTIONS_BILLED_MAX + 2).map(|name| told(32, name)).collect();
        assert!(functions(many).is_err(), "more rows than a lease has");
    }

    #[test]
    fn a_lease_survives_the_way_through_the_store() {
        let told = LeaseInfo {
            id: "0a".repeat(8),
            agent: "01".repeat(8),
            tenant: "uid:7".into(),
            label: "black-scholes".into(),
            state: "ended".into(),
            epoch: 3,
            expires_in_ms: 0,
            cores: vec![1],
            usage: Some(Usage {
                invocations: 5,
                ..Default::default()
            }),
            end_reason: "released".into(),
            shared: false,
            gpus: Vec::new(),
            functions: Vec::new(),
            start: None,
        };
        let agent = told.agent.parse().unwrap();
        let (record, row) = lease_record(agent, BootId([2; 8]), told.clone(), 5).unwrap();
        assert!(row.settled);
        assert_eq!(lease_info(record, Some(row.usage)), told);
        let unknown = LeaseInfo {
            state: "sleeping".into(),
            ..told
        };
        assert!(lease_record(agent, BootId([2; 8]), unknown, 5).is_err());
    }
}
