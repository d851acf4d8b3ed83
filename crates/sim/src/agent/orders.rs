//! An agent's daemon: orders of operators.

use super::{AgentNode, ProcessDied};
use crate::message::{AgentOrder, Response};
use crate::shared_state::SharedState;
use hotlease_lease::agent::{BookEvent, NodeOffer};
use hotlease_wire::Rejection;

impl AgentNode {
    /// Carries out an operator's order like the real agent.
    pub(super) fn order(&mut self, ordered: AgentOrder, site: &mut SharedState) -> Result<Response, ProcessDied> {
        let number = self.number;
        let Some(process) = self.process.as_mut() else {
            return Err(ProcessDied);
        };
        let now = process.clock.shows(site.now);
        let boot = process.boot;
        if ordered.number > process.order {
            if let Some((cores, within)) = ordered.offer {
                let offer = NodeOffer {
                    cores,
                    memory_bytes: None,
                    gpus: None,
                    until: now + within,
                };
                let refusal = self.step(BookEvent::Offer(offer), site)?;
                if let Some(refusal) = refusal.filter(|_| ordered.drained_within.is_none()) {
                    return Ok(Response::Refused(refusal));
                }
            }
            let Some(process) = self.process.as_mut() else {
                return Err(ProcessDied);
            };
            let done = match ordered.drained_within {
                Some(within) => {
                    let until = now + within;
                    let until = process.drained.map_or(until, |by| by.min(until));
                    process.drained = Some(until);
                    let truly = process.clock.true_time(until);
                    site.truth.given_back.insert(number, (boot, truly));
                    self.step(BookEvent::Drain { until }, site)?
                }
                None => {
                    process.drained = None;
                    site.truth.given_back.remove(&number);
                    self.step(BookEvent::Resume, site)?
                }
            };
            if let Some(refusal) = done {
                return Ok(Response::Refused(refusal));
            }
            let Some(process) = self.process.as_mut() else {
                return Err(ProcessDied);
            };
            process.order = ordered.number;
        }
        site.truth.carried_out.insert((number, ordered.number));
        Ok(match &self.process {
            Some(process) => Response::Ordered(process.offering()),
            None => Response::Refused(Rejection::NoAgent),
        })
    }
}
