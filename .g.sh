set -u
export NCCL_NVLS_ENABLE=0 DIL_CACHE=off
use() { B=$1; export DIL_MODULE_DIR=$B LD_LIBRARY_PATH=$B/lib:$B:/usr/local/cuda/lib64; D=$B/dil; }
use build/s1
cat > $OUT/g.dil <<'END'
pattern g64 { heads 16; head_dim 64; dtype bf16; grid 128 x 128; neighborhood 13 x 13; branch { } }
pattern g128 { heads 16; head_dim 128; dtype bf16; grid 128 x 128; neighborhood 13 x 13; branch { } }
pattern g3 { heads 16; head_dim 64; dtype bf16; grid 30 x 48 x 80; neighborhood 5 x 9 x 9; branch { } }
pattern small { heads 4 kv 2; head_dim 64; dtype bf16; grid 24 x 40; neighborhood 13 x 13; branch { } }
pattern s3 { heads 2; head_dim 32; dtype f16; grid 6 x 13 x 18; neighborhood 3 x 5 x 7; branch { } }
pattern d2 { heads 2; head_dim 128; dtype f16; grid 50 x 96; dilation 2 x 3; neighborhood 5 x 5; branch { } }
pattern w { heads 2; head_dim 96; dtype bf16; grid 20 x 150; window 2 x 70; branch { } }
pattern c { heads 2; head_dim 64; dtype bf16; grid 32 x 48; neighborhood 9 x 9; causal y, x; branch { } }
kernel k64 = g64; kernel k128 = g128; kernel k3 = g3; kernel ks = small; kernel ks3 = s3; kernel kd2 = d2; kernel kw = w; kernel kc = c;
END
for k in ks ks3 kd2 kw kc k64 k128; do echo "== $k"; timeout 60 $D run $OUT/g.dil -k $k --random 3 --device cuda --check --backward 2>&1 | grep -E 'grads|good|BAD|not by|error'; done
row() { $D bench $OUT/g.dil -k $1 --device cuda --repeat 21 --backward --json 2>&1 | sed -n 's/.*"seconds": \([^,]*\),.*"gradient_kernels": "\([^"]*\)".*/\1 \2/p'; }
for k in k64 k128 k3; do echo "$k $(row $k)"; done
