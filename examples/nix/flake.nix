# mxpeak with Nix, from a tag of its repository: nix run ./examples/nix -- run hpl -N 8000
{
  description = "The supercomputer benchmarks HPL, HPL-MxP, HPG-MxP and HPCG, and mixed-precision solvers";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
    mxpeak = {
      url = "github:mxpeak/mxpeak/v0.1.0";
      flake = false;
    };
  };

  outputs = { nixpkgs, mxpeak, ... }:
    let
      pkgs = nixpkgs.legacyPackages.x86_64-linux;
    in
    {
      packages.x86_64-linux.default = pkgs.python3Packages.buildPythonApplication {
        pname = "mxpeak";
        version = "0.1.0";
        pyproject = true;
        src = mxpeak;
        build-system = [ pkgs.python3Packages.hatchling ];
        dependencies = with pkgs.python3Packages; [
          numpy
          scipy
          numba
          threadpoolctl
          ml-dtypes
          array-api-compat
          rich
          mpi4py
        ];
        pythonImportsCheck = [ "mxpeak" ];
        meta = {
          homepage = "https://github.com/mxpeak/mxpeak";
          license = pkgs.lib.licenses.bsd3;
          mainProgram = "mxpeak";
        };
      };
    };
}
