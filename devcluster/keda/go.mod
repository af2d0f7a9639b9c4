// Pins the version of KEDA whose proto judges our external scaler (tests/parity/test_keda.py). Nothing of it is compiled.
module pagoda.dev/keda

go 1.25.0

require github.com/kedacore/keda/v2 v2.21.0
