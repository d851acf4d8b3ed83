//! Where the time of a start went, before the program's own first instruction.

use std::time::Duration;

/// What a [`Process`](crate::Process) took to start, step by step; none: there was no such step. The steps come one after the
/// other, so their sum is how long [`Launcher::start`](crate::Launcher::start) took at most.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// Fetching and mounting the image of its environment.
    pub image: Option<Duration>,
    /// Making the sandbox, or taking one that was prepared, and starting the program in it.
    pub sandbox: Option<Duration>,
}

impl Phases {
    /// With what a start took in all: what no other step has taken is the sandbox's, unless that says itself.
    pub(crate) fn of_start(self, took: Duration) -> Self {
        let others = self.image.unwrap_or_default();
        Self {
            sandbox: self.sandbox.or(Some(took.saturating_sub(others))),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_other_step_has_taken_is_the_sandboxs() {
        let ms = Duration::from_millis;
        let image = Phases {
            image: Some(ms(3)),
            ..Phases::default()
        };
        assert_eq!(Phases::default().of_start(ms(5)).sandbox, Some(ms(5)));
        assert_eq!(image.of_start(ms(5)).sandbox, Some(ms(2)));
        assert_eq!(
            image.of_start(ms(1)).sandbox,
            Some(ms(0)),
            "clocks are read one after the other"
        );
        let own = Phases {
            sandbox: Some(ms(1)),
            ..image
        };
        assert_eq!(own.of_start(ms(5)), own, "a kind that knows better is believed");
    }
}
