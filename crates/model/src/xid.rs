//! The meaning of XIDs: the errors of a GPU that its driver reports by a number.

use super::health::Health;

/// The table entry of one XID.
#[derive(Debug)]
pub struct Meaning {
    pub xid: u32,
    /// Critical where the GPU or the job on it cannot continue without an operator, a warning where work is or will be lost,
    /// ok for errors of the job and information.
    pub severity: Health,
    /// What happened.
    pub what: &'static str,
    /// What to do about it.
    pub advice: &'static str,
}

const fn xid(xid: u32, severity: Health, what: &'static str, advice: &'static str) -> Meaning {
    Meaning { xid, severity, what, advice }
}

use Health::{Critical, Ok as Info, Warning};

const RESET: &str = "drain the node and reset the GPU";
const JOB: &str = "check the job first; if several jobs report it, test the GPU";
const RETURN: &str = "drain the node and reset the GPU; replace the GPU if the error recurs";

const LINK: &str =
    "if it is fatal, drain the node and reset the GPU; the severity says so where the kernel log is read";

/// The XIDs in the table, sorted; their counters start at zero, so that `increase()` sees the first event.
pub static KNOWN: &[Meaning] = &[
    xid(13, Info, "graphics engine exception, such as an out-of-bounds access of a kernel", JOB),
    xid(31, Info, "GPU memory page fault: a kernel accessed memory that is not mapped", JOB),
    xid(32, Warning, "invalid or corrupted push buffer stream", JOB),
    xid(38, Warning, "driver firmware error", "update the driver"),
    xid(43, Info, "a job's channel was stopped; the GPU continues", JOB),
    xid(44, Warning, "graphics engine fault during a context switch", RESET),
    xid(
        45,
        Info,
        "preemptive cleanup of a job's work, mostly because the job ended or was killed",
        "no action",
    ),
    xid(46, Critical, "the GPU stopped processing", RESET),
    xid(48, Critical, "double-bit ECC error in GPU memory, which cannot be corrected", RESET),
    xid(54, Critical, "auxiliary power is not connected", "check the power cables"),
    xid(56, Warning, "display engine error", "update the driver"),
    xid(57, Warning, "error when programming the memory interface", RETURN),
    xid(61, Critical, "breakpoint of the GPU's internal microcontroller", RESET),
    xid(62, Critical, "halt of the GPU's internal microcontroller", RESET),
    xid(
        63,
        Warning,
        "a page of GPU memory was retired or a row was remapped",
        "reset the GPU when the job ends",
    ),
    xid(64, Critical, "a page of GPU memory could not be retired or a row could not be remapped", RETURN),
    xid(68, Warning, "video processor exception", JOB),
    xid(69, Warning, "graphics engine class error", JOB),
    xid(74, Critical, "NVLink error", "check the XIDs of the peer GPU, reset both GPUs"),
    xid(
        79,
        Critical,
        "the GPU fell off the bus",
        "restart the node; check power, temperature and the PCIe slot",
    ),
    xid(92, Warning, "high rate of single-bit ECC errors", "monitor the GPU, test it when the job ends"),
    xid(
        94,
        Warning,
        "contained uncorrectable ECC error: only the job that accessed the memory is affected",
        "restart the job; reset the GPU when no job uses it",
    ),
    xid(95, Critical, "uncontained uncorrectable ECC error: other jobs may be affected", RESET),
    xid(109, Critical, "context switch timeout", RESET),
    xid(110, Critical, "security fault", RESET),
    xid(119, Critical, "RPC timeout of the GPU system processor (GSP)", RESET),
    xid(120, Critical, "error of the GPU system processor (GSP)", RESET),
    xid(121, Warning, "corrected error on the link to the CPU (C2C)", "monitor the GPU"),
    xid(136, Critical, "the training of an NVLink link failed", RESET),
    xid(140, Critical, "unrecovered uncorrectable ECC error in the GPU's engines", RETURN),
    xid(143, Critical, "GPU initialization error", RETURN),
    xid(144, Warning, "NVLink 5: an error in the SAW block", LINK),
    xid(145, Warning, "NVLink 5: an error in the RLW block", LINK),
    xid(146, Warning, "NVLink 5: an error in the TLW block", LINK),
    xid(147, Warning, "NVLink 5: an error in the TREX block", LINK),
    xid(148, Warning, "NVLink 5: an error in the NVLPW_CTRL block", LINK),
    xid(149, Warning, "NVLink 5: an error in the NETIR block, such as a link that went down", LINK),
    xid(150, Warning, "NVLink 5: an error in the MSE block", LINK),
    xid(
        154,
        Warning,
        "the recovery action that the driver requests has changed",
        "check the recovery action in nvidia-smi -q",
    ),
    xid(155, Critical, "NVLink error that software defines", RESET),
    xid(156, Critical, "a resource of the GPU was retired", RESET),
    xid(158, Critical, "fatal timeout of the GPU", RESET),
];

/// The meaning of an XID according to the table.
pub fn meaning(xid: u32) -> &'static str {
    KNOWN.iter().find(|known| known.xid == xid).map_or("not in memwarden's table", |known| known.what)
}

/// The severity of an XID according to the table.
pub fn severity(xid: u32) -> Health {
    KNOWN.iter().find(|known| known.xid == xid).map_or(Health::Unknown, |known| known.severity)
}

/// Whether only the line of the kernel log tells the severity of an event of this XID.
pub const fn is_told_by_line(xid: u32) -> bool {
    matches!(xid, 144..=150 | 154)
}

/// The severity of an XID by its line of the kernel log, from the text that follows the number: of NVLink 5 whether it is fatal, of a
/// changed recovery action which one.
pub fn severity_of_line(xid: u32, text: &str) -> Health {
    let told = match xid {
        144..=150 => text.split([' ', ',', ':']).find_map(|word| match word {
            "Fatal" => Some(Critical),
            "Nonfatal" => Some(Warning),
            _ => None,
        }),
        154 => text.rsplit_once(" to 0x").and_then(|(_, action)| match action.split(' ').next()? {
            "0" => Some(Info),
            "1" | "2" => Some(Critical),
            "3" | "4" => Some(Warning),
            _ => None,
        }),
        _ => None,
    };
    told.unwrap_or_else(|| severity(xid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_complete() {
        assert!(KNOWN.windows(2).all(|pair| pair[0].xid < pair[1].xid));
        assert!(KNOWN.iter().all(|known| known.severity != Health::Unknown));
        assert_eq!(severity(79), Health::Critical);
        assert_eq!(severity(7), Health::Unknown);
        assert_eq!(meaning(79), "the GPU fell off the bus");
        assert_eq!(meaning(7), "not in memwarden's table");
        let changed =
            |to| severity_of_line(154, &format!(", GPU recovery action changed from 0x0 (None) to {to}"));
        let severities =
            ["0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)", "0x3 (Drain P2P)", "0x0 (None)", "?"];
        assert_eq!(severities.map(changed), [Critical, Critical, Warning, Info, Warning]);
        let link =
            |word| severity_of_line(149, &format!(", NETIR_LINK_EVT {word} XC0 i0 Link 08 (0x001 0x00)"));
        assert_eq!(["Fatal", "Nonfatal", ""].map(link), [Critical, Warning, Warning]);
        assert_eq!(severity_of_line(31, ", pid=1, name=Fatal"), Info);
        let told: Vec<u32> = (0..1_000).filter(|xid| is_told_by_line(*xid)).collect();
        assert_eq!(told, [144, 145, 146, 147, 148, 149, 150, 154]);
        assert!(told.iter().all(|xid| severity(*xid) == Health::Warning));
    }
}
