//! A series from CSV: `t_s,bytes[,limit]`, or columns by their names.
//!
//! A header names the columns, in any order: a time, `bytes`, and optionally `limit`, `anon`, `shmem`, `alloc`; other
//! columns are ignored. Without a header the columns are time, bytes and limit. An empty cell or `nan` is unknown. Rows
//! out of order are sorted, and of rows at the same time the last one is used; both are noted. The column `step` has the step of
//! the training, where there is one.

use super::columns;
use crate::files::run_records::quantity::{self, Quantity};
use memwarden::model::format;
use memwarden::model::series::{Row, Series};
use memwarden::model::steps::Steps;
use memwarden::model::units::whole;

/// Maximum value in bytes: 8 PiB, below which a double is exact.
const LARGEST: f64 = 9_007_199_254_740_992.0;
/// Maximum number of series; a node has fewer GPUs and processes.
const MOST_SERIES: usize = 1024;
/// The columns that are read.
const COLUMNS: [&str; 5] = ["bytes", "limit", "anon", "shmem", "alloc"];

/// The reason why a file is not a recorded series.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct CsvError {
    name: String,
    problem: String,
}

/// Reads a series; `name` is the name of the file.
///
/// # Errors
/// [`CsvError`], with the first invalid line or time.
pub fn read(name: &str, bytes: &[u8]) -> Result<Series, CsvError> {
    let no_column = || CsvError { name: name.to_owned(), problem: "there is no column bytes".to_owned() };
    series(name, bytes)?.ok_or_else(no_column)
}

/// The series of the column `bytes`; absent without this column.
fn series(name: &str, bytes: &[u8]) -> Result<Option<Series>, CsvError> {
    let wrong = |problem: String| CsvError { name: name.to_owned(), problem };
    let table = columns::read(bytes, |column| COLUMNS.contains(&column));
    let table = table.map_err(|error| wrong(error.to_string()))?;
    let mut found: [Option<&[Option<f64>]>; COLUMNS.len()] = [None; COLUMNS.len()];
    for (column, place) in COLUMNS.iter().zip(&mut found) {
        for own in table.columns.iter().filter(|own| own.name == *column) {
            if place.replace(&own.values).is_some() {
                return Err(wrong(format!("the column {column} is listed twice")));
            }
        }
    }
    let [Some(used), limit, anon, shmem, allocated] = found else {
        return Ok(None);
    };
    let mut series = Series { name: name.to_owned(), ..Series::default() };
    for (place, at) in table.times.iter().copied().enumerate() {
        let value = |of: Option<&[Option<f64>]>| of.and_then(|values| values[place]);
        let Some(used) = used[place] else { continue };
        // If shared memory has no column, no value includes it.
        let shared = if shmem.is_some() { value(shmem) } else { Some(0.0) };
        let (limit, anon, allocated) = (value(limit), value(anon), value(allocated));
        let amounts = [Some(used), limit, anon, shared, allocated];
        if let Some(other) = amounts.into_iter().flatten().find(|amount| !(0.0..=LARGEST).contains(amount)) {
            return Err(wrong(format!("{other} at the time {at} s is not 0 to 2^53 bytes")));
        }
        let (limit, unreclaimable) = (limit.filter(|limit| *limit > 0.0), anon.zip(shared));
        let unreclaimable = unreclaimable.map(|(anon, shared)| anon + shared);
        series.rows.push(Row { at, used, limit, unreclaimable, allocated });
    }
    if series.rows.is_empty() {
        return Err(wrong("there is no row with a value".to_owned()));
    }
    let unknown = table.times.len() - series.rows.len();
    remark(&mut series, unknown, "without a value left out");
    put_in_order(&mut series);
    Ok(Some(series))
}

/// What a column of used memory counts: `NAME_bytes`, or a name of memory with its unit, such as `gpu_mem_mb`; with the
/// bytes in one unit, and whether it is memory of a GPU.
fn used(column: &str) -> Option<(&str, Quantity)> {
    let bytes = column.strip_suffix("_bytes");
    let own = bytes.filter(|name| !matches!(*name, "available" | "free" | "limit" | "total"));
    match own {
        Some(name) => Some((name, Quantity { unit: 1.0, gpu: name.starts_with("gpu") })),
        None => Some((column, quantity::of_name(column).filter(|_| bytes.is_none())?)),
    }
}

/// Reads every series of a file: that of the column `bytes`, or one of each column of used memory with its unit.
///
/// # Errors
/// [`CsvError`], as [`read`]; where no column is one of memory, with the columns that are.
pub fn read_all(name: &str, bytes: &[u8]) -> Result<Vec<Series>, CsvError> {
    let wrong = |problem: String| CsvError { name: name.to_owned(), problem };
    if let Some(one) = series(name, bytes)? {
        return Ok(vec![one]);
    }
    let table =
        columns::read(bytes, |column| used(column).is_some()).map_err(|error| wrong(error.to_string()))?;
    if table.columns.is_empty() {
        return Err(wrong(
            "there is no column bytes, and none whose name has memory and its unit, such as gpu_memory_mib"
                .to_owned(),
        ));
    }
    if table.columns.len() > MOST_SERIES {
        return Err(wrong(format!("more than {MOST_SERIES} columns of memory")));
    }
    let series = table.columns.into_iter().filter_map(|column| {
        let (what, Quantity { unit, gpu }) = used(&column.name)?;
        let values = column.values.into_iter().map(|value| value.map(|value| value * unit));
        let points = table.times.iter().copied().zip(values);
        Some(Series { gpu, ..Series::of_points(format!("{name}: {what}"), None, points) })
    });
    Ok(series.filter(|series| !series.rows.is_empty()).collect())
}

/// The steps of the column `step`; none where it is missing, or a cell is not a number.
pub fn steps(bytes: &[u8]) -> Steps {
    let mut steps = Steps::default();
    let table = columns::read(bytes, |column| column == "step");
    if let Some((times, column)) =
        table.ok().and_then(|table| Some((table.times, table.columns.into_iter().next()?)))
    {
        let known = times.into_iter().zip(column.values).filter_map(|(at, step)| Some((at, step?)));
        let mut known: Vec<(f64, f64)> = known.filter(|(_, step)| (0.0..=LARGEST).contains(step)).collect();
        known.sort_by(|one, next| one.0.total_cmp(&next.0));
        known.into_iter().for_each(|(at, step)| steps.push(at, whole(step)));
    }
    steps
}

fn remark(series: &mut Series, rows: usize, what: &str) {
    if rows > 0 {
        series.remarks.push(format!("{} {what}", format::counted(rows, "row")));
    }
}

fn put_in_order(series: &mut Series) {
    let late = series.rows.windows(2).filter(|pair| pair[1].at < pair[0].at).count();
    if late > 0 {
        series.rows.sort_by(|one, next| one.at.total_cmp(&next.at));
        remark(series, late, "out of order sorted by time");
    }
    let before = series.rows.len();
    let mut kept: usize = 0;
    for i in 0..before {
        if i + 1 < before && series.rows[i + 1].at == series.rows[i].at {
            continue;
        }
        series.rows[kept] = series.rows[i];
        kept += 1;
    }
    series.rows.truncate(kept);
    remark(series, before - kept, "at a time that comes again left out");
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(text: &[u8], wanted: Expect) {
        let shown = match read("run.csv", text) {
            Ok(series) => {
                let rows: Vec<String> = series.rows.iter().map(|r| format!("{r:?}")).collect();
                format!("{}\n{}", rows.join("\n"), series.remarks.join("\n"))
            }
            Err(error) => error.to_string(),
        };
        wanted.assert_eq(&shown);
    }

    #[test]
    fn the_samples_of_an_incident_can_be_read() {
        let header = memwarden::protection::types::incident::SAMPLES_HEADER;
        let text = format!("{header}1.000,50,100\n2.000,,100\n3.000,60,100\n");
        assert_eq!(read("host", text.as_bytes()).unwrap().rows.len(), 2);
    }

    #[test]
    fn columns_are_selected_by_name_or_position() {
        check(
            b"t_s,bytes,limit\n0,10,100\n1,11,100\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: Some(100.0), unreclaimable: None, allocated: None }
                Row { at: 1.0, used: 11.0, limit: Some(100.0), unreclaimable: None, allocated: None }
            "#]],
        );
        check(
            b"\xEF\xBB\xBFalloc,\"bytes\",anon,t_s,shmem,x\r\n5,10,7,0,1,?\r\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: None, unreclaimable: Some(8.0), allocated: Some(5.0) }
            "#]],
        );
        // A quoted cell of an ignored column contains a comma and a line end.
        check(
            b"t_s,note,bytes\n0,\"a, \"\"b\"\"\n\",\"10\"\n1,c,11\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: None, unreclaimable: None, allocated: None }
                Row { at: 1.0, used: 11.0, limit: None, unreclaimable: None, allocated: None }
            "#]],
        );
        check(b"0,10,\n\n1,1e1,100", expect!["run.csv: there is no column bytes"]);
    }

    #[test]
    fn corrected_problems_are_noted() {
        check(
            b"t_s,bytes\n2,12\n1,11\n1,13\n3,nan\n4,\n",
            expect![[r#"
                Row { at: 1.0, used: 13.0, limit: None, unreclaimable: None, allocated: None }
                Row { at: 2.0, used: 12.0, limit: None, unreclaimable: None, allocated: None }
                2 rows without a value left out
                1 row out of order sorted by time
                1 row at a time that comes again left out"#]],
        );
    }

    #[test]
    fn errors_have_the_line() {
        check(b"", expect!["run.csv: there are no rows after the header"]);
        check(b"\n \n", expect!["run.csv: there are no rows after the header"]);
        check(b"t_s,bytes\n", expect!["run.csv: there are no rows after the header"]);
        check(b"t_s,bytes\n1,\n", expect!["run.csv: there is no row with a value"]);
        check(b"t_s,rss\n0,1\n", expect!["run.csv: there is no column bytes"]);
        check(b"t_s,bytes,bytes\n0,1,2\n", expect!["run.csv: the column bytes is listed twice"]);
        check(b"0,1\n1,-5\n", expect!["run.csv: -5 at the time 1 s is not 0 to 2^53 bytes"]);
        check(b"0,1\n1,many\n", expect![[r#"run.csv: line 2, column bytes: "many" is not a number"#]]);
        check(
            b"0,1\n1,1e17\n",
            expect!["run.csv: 100000000000000000 at the time 1 s is not 0 to 2^53 bytes"],
        );
        check(b"0,1\ninf,1\n", expect!["run.csv: line 2: a row without a time"]);
        check(b"0,1\n7\n", expect!["run.csv: line 2: 1 cells, but the header has 2"]);
        check(b"0,1\n1,\xFF\n", expect!["run.csv: line 2: not UTF-8 text"]);
        check(b"0,1\n1,\"2\n3,4\n", expect!["run.csv: line 2: a quotation mark is opened and never closed"]);
    }

    #[test]
    fn columns_have_a_unit_in_their_name() {
        let series =
            read_all("x", b"timestamp,gpu_mem_mb,ram_mb,gpu_util\n2026-09-01 10:00:00,1000,5000,9\n")
                .unwrap();
        let shown: Vec<_> = series.iter().map(|own| (own.name.as_str(), own.gpu, own.rows[0].used)).collect();
        assert_eq!(shown, [("x: gpu_mem_mb", true, 1_048_576_000.0), ("x: ram_mb", false, 5_242_880_000.0)]);
    }

    #[test]
    fn columns_of_several_devices_are_series() {
        let text = b"t_s,gpu0_bytes,gpu1_bytes,available_bytes,rss_bytes\n0,5,,9,2\n1,6,,8,2\n";
        let found = read_all("run.csv", text).unwrap();
        let shown: Vec<_> =
            found.iter().map(|series| (series.name.as_str(), series.gpu, series.rows.len())).collect();
        assert_eq!(shown, [("run.csv: gpu0", true, 2), ("run.csv: rss", false, 2)]);
        assert_eq!(read_all("run.csv", b"t_s,bytes,gpu0_bytes\n0,5,6\n").unwrap()[0].rows[0].used, 5.0);
        let error = |text: &[u8]| read_all("run.csv", text).unwrap_err().to_string();
        assert_eq!(
            error(b"t_s,free_bytes\n0,1\n"),
            "run.csv: there is no column bytes, and none whose name has memory and its unit, such as gpu_memory_mib"
        );
        assert_eq!(error(b"t_s,bytes\n0,x\n"), "run.csv: line 2, column bytes: \"x\" is not a number");
    }

    #[test]
    fn a_column_has_the_step_of_the_training() {
        let between = |text: &[u8]| steps(text).between(0.0, 30.0);
        assert_eq!(between(b"t_s,bytes,step\n10,5,1\n20,5,\n30,5,3\n"), Some(3));
        assert_eq!(between(b"t_s,gpu0_bytes,step\n30,5,3\n10,5,1\n"), Some(3));
        assert_eq!(between(b"t_s,bytes\n10,5\n30,5\n"), None);
        assert_eq!(between(b"t_s,bytes,step\n10,5,a\n30,5,b\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read("x", &bytes);
            let _ = steps(&bytes);
        }

        #[test]
        fn no_cells_panic(text in "(t_s,bytes\n)?([-0-9.,naife\"\n]{0,200})") {
            if let Ok(series) = read("x", text.as_bytes()) {
                prop_assert!(series.rows.windows(2).all(|pair| pair[0].at < pair[1].at));
            }
        }
    }
}
