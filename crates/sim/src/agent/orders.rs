//! An agent's daemon: orders of operators.

use super::{AgentNode, Died};
use crate::message::{Ordered, Response};
use crate::site::Site;
use hotlease_lease::agent::{Event, Offer};
use hotlease_wire::Refusal;

impl AgentNode {
    /// Carries out an operator's order as the real agent does.
    pub(super) fn order(&mut self, ordered: Ordered, site: &mut Site) -> Result<Response, Died> {
        let number = self.number;
        let Some(process) = self.process.as_mut() else {
            return Err(Died);
        };
        let now = process.clock.shows(site.now);
        let boot = process.boot;
        if ordered.number > process.order {
            process.order = ordered.number;
            let done = match ordered.drained_within {
                Some(within) => {
                    let until = now + within;
                    let until = process.drained.map_or(until, |by| by.min(until));
                    process.drained = Some(until);
                    let truly = process.clock.true_time(until);
                    site.truth.given_back.insert(number, (boot, truly));
                    self.step(Event::Drain { until }, site)?
                }
                None => {
                    process.drained = None;
                    site.truth.given_back.remove(&number);
                    self.step(Event::Resume, site)?
                }
            };
            let offered = match ordered.offer {
                Some((cores, within)) => {
                    let offer = Offer {
                        cores,
                        memory_bytes: None,
                        gpus: None,
                        until: now + within,
                    };
                    self.step(Event::Offer(offer), site)?
                }
                None => None,
            };
            if let Some(refusal) = done.or(offered) {
                return Ok(Response::Refused(refusal));
            }
        }
        site.truth.carried_out.insert((number, ordered.number));
        Ok(match &self.process {
            Some(process) => Response::Ordered(process.offering()),
            None => Response::Refused(Refusal::NoAgent),
        })
    }
}
