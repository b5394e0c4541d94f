//! All processes at one time, as CSV.

use std::path::Path;

use crate::host::process::{ProcRoot, page_size, stat};
use crate::model::printable::is_hidden;

/// All processes below `proc`, the largest first, as CSV with a header; those that end meanwhile are left out.
///
/// Only `stat` and the folder's owner are read: command lines hold the memory of a process that is ending.
///
/// # Errors
/// Where processes cannot be listed.
pub fn processes(proc: &Path) -> std::io::Result<String> {
    let mut root = ProcRoot::new(proc.to_owned());
    let mut listed = Vec::new();
    root.list(&mut listed)?;
    let mut buffer = Vec::new();
    let mut rows = Vec::with_capacity(listed.len());
    for process in listed {
        let uid = root.uid(process.pid).map_or_else(|_| String::new(), |uid| uid.to_string());
        let Ok(text) = root.read(process.pid, "stat", &mut buffer) else { continue };
        let Some(stat) = stat(text) else { continue };
        if stat.kernel {
            continue;
        }
        let resident = stat.rss_pages.saturating_mul(page_size());
        let comm = String::from_utf8_lossy(stat.comm).replace(is_hidden, "?");
        // A spreadsheet would compute it, or run it.
        let comm = if comm.starts_with(['=', '+', '-', '@']) { format!("'{comm}") } else { comm };
        rows.push((
            resident,
            [
                process.pid.to_string(),
                stat.parent.to_string(),
                uid,
                char::from(stat.state).to_string(),
                stat.threads.to_string(),
                resident.to_string(),
                stat.start.to_string(),
                comm,
            ],
        ));
    }
    rows.sort_by_key(|(resident, _)| std::cmp::Reverse(*resident));
    let mut table = csv::Writer::from_writer(Vec::new());
    let header = ["pid", "parent", "uid", "state", "threads", "resident_bytes", "start_ticks", "name"];
    table.write_record(header)?;
    for (_, row) in &rows {
        table.write_record(row)?;
    }
    let table = table.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&table).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::testing::{Process, Tree};

    #[test]
    fn the_largest_come_first_and_names_are_quoted_where_they_must() {
        let tree = Tree::new();
        tree.add(&Process::new(5, "small").pages(1));
        tree.add(&Process::new(6, "a \"b\", c").pages(9));
        tree.add(&Process::new(7, "=1+2").pages(8));
        let table = processes(&tree.proc()).unwrap();
        let uid = rustix::process::getuid().as_raw();
        let page = page_size();
        let expected = format!(
            "pid,parent,uid,state,threads,resident_bytes,start_ticks,name\n\
             6,1,{uid},S,1,{},6,\"a \"\"b\"\", c\"\n7,1,{uid},S,1,{},7,'=1+2\n\
             5,1,{uid},S,1,{page},5,small\n",
            9 * page,
            8 * page
        );
        assert_eq!(table, expected);
    }
}
