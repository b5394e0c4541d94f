//! Memory, temperatures, clocks, and the counters of time spent slowed down.

use serde::Deserialize;

use crate::value::Value;

const GIB: u32 = 1 << 30;
const MIB: u32 = 1 << 20;

/// Memory of a GPU or a MIG instance, in bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Memory {
    pub(crate) total: Value,
    pub(crate) reserved: Value,
    /// Without the reserved part; the sum over the processes if absent.
    pub(crate) used: Option<Value>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { total: Value::Fixed(81_559.0 * f64::from(MIB)), reserved: (464 * MIB).into(), used: None }
    }
}

/// The BAR1 window, in bytes.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Bar1 {
    pub(crate) total: Value,
    pub(crate) used: Value,
}

impl Default for Bar1 {
    fn default() -> Self {
        Self { total: Value::Fixed(128.0 * f64::from(GIB)), used: (6 * MIB).into() }
    }
}

/// Temperature thresholds, in degrees Celsius.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Thresholds {
    pub(crate) shutdown: Option<Value>,
    pub(crate) slowdown: Option<Value>,
    pub(crate) memory_max: Option<Value>,
    pub(crate) gpu_max: Option<Value>,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            shutdown: Some(92.into()),
            slowdown: Some(89.into()),
            memory_max: Some(95.into()),
            gpu_max: Some(87.into()),
        }
    }
}

/// Clocks now and at most, in MHz.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Clocks {
    graphics: Option<Value>,
    sm: Option<Value>,
    memory: Option<Value>,
    video: Option<Value>,
    pub(crate) max: ClockSet,
}

/// One clock for each domain, in MHz.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClockSet {
    graphics: Option<Value>,
    sm: Option<Value>,
    memory: Option<Value>,
    video: Option<Value>,
}

impl Default for Clocks {
    fn default() -> Self {
        Self {
            graphics: Some(1_980.into()),
            sm: Some(1_980.into()),
            memory: Some(2_619.into()),
            video: Some(1_545.into()),
            max: ClockSet::default(),
        }
    }
}

impl Default for ClockSet {
    fn default() -> Self {
        Self {
            graphics: Some(1_980.into()),
            sm: Some(1_980.into()),
            memory: Some(2_619.into()),
            video: Some(1_545.into()),
        }
    }
}

impl Clocks {
    /// The clock of an `nvmlClockType_t`.
    pub(crate) fn of(&self, domain: u32) -> Option<&Value> {
        [&self.graphics, &self.sm, &self.memory, &self.video]
            .get(domain as usize)
            .and_then(|clock| clock.as_ref())
    }
}

impl ClockSet {
    /// The clock of an `nvmlClockType_t`.
    pub(crate) fn of(&self, domain: u32) -> Option<&Value> {
        [&self.graphics, &self.sm, &self.memory, &self.video]
            .get(domain as usize)
            .and_then(|clock| clock.as_ref())
    }
}

/// Time spent below the wanted clocks, by cause, in nanoseconds since the driver was loaded.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Violations {
    power: Option<Value>,
    thermal: Option<Value>,
    sync_boost: Option<Value>,
    board_limit: Option<Value>,
    low_utilization: Option<Value>,
    reliability: Option<Value>,
    app_clocks: Option<Value>,
    base_clocks: Option<Value>,
    pub(crate) sw_thermal: Option<Value>,
    pub(crate) hw_thermal: Option<Value>,
    pub(crate) hw_power_brake: Option<Value>,
}

impl Default for Violations {
    fn default() -> Self {
        let zero = || Some(0.into());
        Self {
            power: zero(),
            thermal: zero(),
            sync_boost: zero(),
            board_limit: zero(),
            low_utilization: zero(),
            reliability: zero(),
            app_clocks: zero(),
            base_clocks: zero(),
            sw_thermal: zero(),
            hw_thermal: zero(),
            hw_power_brake: zero(),
        }
    }
}

impl Violations {
    /// The counter of an `nvmlPerfPolicyType_t`; the enumeration has a gap from 6 to 9.
    pub(crate) fn of(&self, policy: u32) -> Option<&Value> {
        match policy {
            0 => self.power.as_ref(),
            1 => self.thermal.as_ref(),
            2 => self.sync_boost.as_ref(),
            3 => self.board_limit.as_ref(),
            4 => self.low_utilization.as_ref(),
            5 => self.reliability.as_ref(),
            10 => self.app_clocks.as_ref(),
            11 => self.base_clocks.as_ref(),
            _ => None,
        }
    }
}
