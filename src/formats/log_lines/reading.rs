//! The values of one line. All are optional: no framework prints all of them.

/// The values of one line, in base units; missing ones are absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The rank that wrote it, from the line or its prefix.
    pub rank: Option<u32>,
    /// Optimizer steps, as the framework counts them.
    pub step: Option<u64>,
    /// Optimizer steps that are planned.
    pub steps_planned: Option<u64>,
    pub step_seconds: Option<f64>,
    /// Tokens of the whole job since it began.
    pub tokens: Option<u64>,
    /// Samples (sequences) of the whole job since it began.
    pub samples: Option<u64>,
    /// Sequences of one step, all ranks together.
    pub global_batch: Option<u64>,
    /// Tokens per second of the whole job.
    pub tokens_per_second: Option<f64>,
    pub tokens_per_second_per_gpu: Option<f64>,
    /// Samples per second of the whole job.
    pub samples_per_second: Option<f64>,
    pub samples_per_second_per_gpu: Option<f64>,
    /// FLOP/s per GPU, as computed by the framework.
    pub flops_per_gpu: Option<f64>,
    /// MFU as computed by the framework, 0 to 1.
    pub mfu: Option<f64>,
    pub loss: Option<f64>,
    pub loss_not_finite: bool,
    pub learning_rate: Option<f64>,
    pub grad_norm: Option<f64>,
    /// Factor that the loss is multiplied with before the backward pass.
    pub loss_scale: Option<f64>,
    /// Steps skipped since the job began.
    pub skipped: Option<u64>,
    /// Steps skipped since the previous line.
    pub skipped_more: Option<u64>,
    /// Steps with a loss that was not finite, since the previous line.
    pub nan_more: Option<u64>,
    /// Seconds of the forward, backward and optimizer phase of a step.
    pub phases: [Option<f64>; 3],
    /// Allocated bytes of the allocator.
    pub allocated: Option<u64>,
    /// Peak allocated bytes of the allocator.
    pub allocated_peak: Option<u64>,
    /// Reserved bytes of the allocator.
    pub reserved: Option<u64>,
    /// Peak reserved bytes of the allocator.
    pub reserved_peak: Option<u64>,
    /// Allocations that only succeeded after the cache was emptied, since the process began.
    pub retries: Option<u64>,
    /// Allocations that failed, since the process began.
    pub ooms: Option<u64>,
    /// The line is the framework's summary of a completed run.
    pub finished: bool,
}

/// The names of [`Reading::phases`].
pub const PHASES: [&str; 3] = ["forward", "backward", "optimizer"];

impl Reading {
    /// Sets the loss from its printed form.
    pub(super) fn set_loss(&mut self, text: &str) {
        match super::scan::front(text) {
            Some((super::scan::Number::Finite(loss), _)) => self.loss = Some(loss),
            Some((super::scan::Number::NotFinite, _)) => self.loss_not_finite = true,
            None => {}
        }
    }

    /// Updates the values with those of `newer`; values that apply to one line only are not kept.
    pub fn update(&mut self, newer: &Self) {
        macro_rules! newer {
            ($($field:ident),*) => {$(
                if newer.$field.is_some() {
                    self.$field = newer.$field;
                }
            )*};
        }
        newer! {
            rank, step, steps_planned, step_seconds, tokens, samples, global_batch, tokens_per_second,
            tokens_per_second_per_gpu, samples_per_second, samples_per_second_per_gpu, flops_per_gpu, mfu,
            learning_rate, grad_norm, loss_scale, skipped, allocated, allocated_peak, reserved,
            reserved_peak, retries, ooms
        }
        for (phase, newer) in self.phases.iter_mut().zip(newer.phases) {
            *phase = newer.or(*phase);
        }
        if newer.loss.is_some() || newer.loss_not_finite {
            // A loss that is not finite replaces the previous one.
            self.loss = newer.loss;
            self.loss_not_finite = newer.loss_not_finite;
        }
        self.finished = newer.finished;
    }

    /// Absent if there are no values.
    pub(super) fn some(self) -> Option<Self> {
        (self != Self { rank: self.rank, ..Self::default() }).then_some(self)
    }
}
