import csv, gzip, re, statistics
import hotlease

def elements(molecule):  # a task of some microseconds for each molecule: there is no need to put many into one
    return {symbol.capitalize() for symbol in re.findall("Si|[Ss]e|[CNOScnos]", molecule)}

molecules = list(csv.DictReader(gzip.open("examples/07_molecules/molecules.csv.gz", "rt")))
with hotlease.Executor() as executor:  # a concurrent.futures.Executor; starts or joins the platform of this machine
    found = list(executor.map(elements, [molecule["smiles"] for molecule in molecules]))
for element in ("N", "O", "S", "Se", "Si"):
    efficiencies = [float(molecule["PCE"]) for molecule, its in zip(molecules, found) if element in its]
    print(f"{element:2} in {len(efficiencies):6,} molecules, efficiency {statistics.mean(efficiencies):.2f} %")
