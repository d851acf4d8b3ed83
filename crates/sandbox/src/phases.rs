//! Durations of the steps of a start, before the program's own first instruction.

use std::time::Duration;

/// Durations of the steps in which a [`Process`](crate::Process) was started; `None` if a step did not occur. The steps
/// follow each other, so their sum is at most the duration of [`Launcher::start`](crate::Launcher::start).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// Fetching and mounting the image of the program's environment.
    pub image: Option<Duration>,
    /// Making a sandbox, or assigning a prepared one, and starting the program in it.
    pub sandbox: Option<Duration>,
}

impl Phases {
    /// Completes the steps with the duration of the whole start. If the step of the sandbox was not measured, it gets
    /// the time that belongs to no other step.
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
    fn the_remaining_start_time_counts_as_the_sandboxs() {
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
